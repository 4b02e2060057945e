#include "api/info.h"

#include <nlohmann/json.hpp>

#include "api/build_info.h"
#include "api/plan.h"
#include "cpu/instruction_set.h"
#include "cpu/threads.h"
#include "cuda/backend.h"
#include "flash_kda/flash_kda.h"

namespace flash_kda {

std::string info_json() {
  nlohmann::ordered_json info;
  info["version"] = FLASH_KDA_VERSION;
  info["build"] = {{"compiler", FLASH_KDA_BUILD_COMPILER},
                   {"type", FLASH_KDA_BUILD_TYPE},
                   {"cuda", cuda::toolkit_version()},
                   {"cuda_architectures", FLASH_KDA_BUILD_CUDA_ARCHITECTURES},
                   {"source_digest", FLASH_KDA_SOURCE_DIGEST}};
  info["cpu"]["threads"] = cpu::default_threads();
  for (cpu::InstructionSet set : cpu::usable_instruction_sets())
    info["cpu"]["instruction_sets"].push_back(cpu::name_of(set));
  std::string why;
  const int count = cuda::count_devices(why);
  info["cuda"]["available"] = count > 0;
  if (!why.empty()) info["cuda"]["why"] = why;
  info["cuda"]["devices"] = nlohmann::ordered_json::array();
  for (int device = 0; device < count; ++device) {
    const Machine& machine = cuda::describe_device(device);
    info["cuda"]["devices"].push_back({{"device", device},
                                       {"name", machine.gpu_name},
                                       {"compute_capability", machine.compute_capability / 10.0},
                                       {"multiprocessors", machine.multiprocessors},
                                       {"usable", machine.has_gpu},
                                       {"why", machine.why_no_gpu}});
  }
  return info.dump();
}

}  // namespace flash_kda
