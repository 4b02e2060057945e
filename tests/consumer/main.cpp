// The same token as main.c from C++, and a refusal as an exception.
#include <flash_kda/flash_kda.hpp>

#include <cmath>
#include <cstdio>

int main() {
  float one = 1, v = 4, zero = 0, out = 0;
  flash_kda::ForwardArgs args;
  args.q = args.k = flash_kda::tensor(&one, FLASH_KDA_F32, {1, 1, 1, 1});
  args.v = flash_kda::tensor(&v, FLASH_KDA_F32, {1, 1, 1, 1});
  args.g = flash_kda::tensor(&zero, FLASH_KDA_F32, {1, 1, 1, 1});
  args.beta = flash_kda::tensor(&zero, FLASH_KDA_F32, {1, 1, 1});
  args.out = flash_kda::tensor(&out, FLASH_KDA_F32, {1, 1, 1, 1});
  args.l2norm = 0;
  flash_kda::forward(args);
  std::printf("flash_kda %s from C++: out = %g\n", flash_kda_version(), static_cast<double>(out));
  if (std::fabs(out - 2) > 1e-5F) return 1;
  args.gate = 7;
  try {
    flash_kda::forward(args);
  } catch (const flash_kda::Error& error) {
    return error.status() == FLASH_KDA_ERROR_VALUE ? 0 : 1;
  }
  return 1;
}
