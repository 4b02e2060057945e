// GoogleTest's main with one flag more: --cuda-path=two_kernel or fused is taken by every case that leaves the path
// open, so that the same tests run on both.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "cuda/solve.h"

int main(int argc, char** argv) {
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--cuda-path=two_kernel")
      flash_kda::test::set_cuda_path(FLASH_KDA_CUDA_PATH_TWO_KERNEL);
    else if (flag == "--cuda-path=fused")
      flash_kda::test::set_cuda_path(FLASH_KDA_CUDA_PATH_FUSED);
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  argv[argc] = nullptr;
  testing::InitGoogleTest(&argc, argv);  // removes its own flags; makes the tables of cases, which need the path
  if (argc > 1) {
    std::fprintf(stderr, "%s: got %s, accepted is --cuda-path=two_kernel, --cuda-path=fused or a GoogleTest flag\n",
                 argv[0], argv[1]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
