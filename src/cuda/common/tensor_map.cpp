#include "cuda/common/tensor_map.h"

#include <cudaTypedefs.h>

#include "api/error.h"
#include "cuda/common/check.h"

namespace flash_kda::cuda {
namespace {

/// cuTensorMapEncodeTiled, looked up through the runtime so that the library loads where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
    if (result != cudaDriverEntryPointSuccess)
      fail(FLASH_KDA_ERROR_DEVICE,
           "device: the driver has no cuTensorMapEncodeTiled, accepted is a driver for CUDA 12.0 or later");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(pointer);
  }();
  return function;
}

}  // namespace

CUtensorMap token_map(const Params& p, const TokenTensor& x, int heads, int tokens, int channels, bool swizzled) {
  constexpr int kHeadDim = 128;
  const auto size = static_cast<cuuint64_t>(size_of(x.dtype));
  // The stride of an extent of 1 never moves anything and may be arbitrary: any legal value will do.
  const auto stride = [&](int64_t extent, int64_t elements) -> cuuint64_t {
    return extent > 1 ? static_cast<cuuint64_t>(elements) * size : kHeadDim * size;
  };
  const cuuint64_t extents[4] = {kHeadDim, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(p.T),
                                 static_cast<cuuint64_t>(p.B)};
  const cuuint64_t strides[3] = {stride(heads, x.stride_head), stride(p.T, x.stride_token),
                                 stride(p.B, x.stride_batch)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(channels), 1, static_cast<cuuint32_t>(tokens), 1},
                   element_strides[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code = encode_function()(
      &map, x.dtype == FLASH_KDA_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data,
      extents, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    fail(FLASH_KDA_ERROR_CUDA,
         "cuTensorMapEncodeTiled returned {} for extents [128, {}, {}, {}] and byte strides [{}, {}, {}]",
         static_cast<int>(code), heads, p.T, p.B, strides[0], strides[1], strides[2]);
  return map;
}

}  // namespace flash_kda::cuda
