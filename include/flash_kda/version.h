/* The version of FlashKDA, stated nowhere else: CMake and the Python package read it from here. */
#ifndef FLASH_KDA_VERSION_H_
#define FLASH_KDA_VERSION_H_

#define FLASH_KDA_VERSION "0.1.0"

#endif /* FLASH_KDA_VERSION_H_ */
