/* The version of FlashKDA. This file is the only place that states it; CMake and the Python package read it from here.
 */
#ifndef FLASH_KDA_VERSION_H_
#define FLASH_KDA_VERSION_H_

#define FLASH_KDA_VERSION "0.1.0"

#endif /* FLASH_KDA_VERSION_H_ */
