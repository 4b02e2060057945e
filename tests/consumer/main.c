/* One token, one head, K = V = 1, from C: with a zero state, q = k = 1 and beta = 1/2, out = beta * v = 2. */
#include <flash_kda/flash_kda.h>
#include <stdio.h>
#include <string.h>

static flash_kda_tensor scalar(float* value, int rank) {
  flash_kda_tensor t;
  int d;
  memset(&t, 0, sizeof t);
  t.data = value;
  t.dtype = FLASH_KDA_F32;
  t.rank = rank;
  for (d = 0; d < rank; ++d) t.shape[d] = t.strides[d] = 1;
  return t;
}

int main(void) {
  float one = 1, v = 4, zero = 0, out = 0;
  flash_kda_forward_args args;
  flash_kda_forward_args_init(&args);
  args.q = args.k = scalar(&one, 4);
  args.v = scalar(&v, 4);
  args.g = scalar(&zero, 4);
  args.beta = scalar(&zero, 3);
  args.out = scalar(&out, 4);
  args.l2norm = 0;
  if (flash_kda_forward(&args) != FLASH_KDA_OK) {
    fprintf(stderr, "%s\n", flash_kda_last_error());
    return 1;
  }
  printf("flash_kda %s from C: out = %g\n", flash_kda_version(), (double)out);
  if (out < 1.99999F || out > 2.00001F) return 1;
  args.gate = 7;
  if (flash_kda_forward(&args) != FLASH_KDA_ERROR_VALUE) return 1;
  return strcmp(flash_kda_version(), FLASH_KDA_VERSION) != 0;
}
