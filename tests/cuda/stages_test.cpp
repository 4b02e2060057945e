// The six results of prepare, one by one, against the chunked form computed here in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "api/validate.h"
#include "common/float_types.h"
#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "cuda/two_kernel/config.h"
#include "cuda/two_kernel/launch.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

using namespace cuda::two_kernel;
using Matrix = std::vector<std::vector<double>>;

/// The image of one tile in fp64. Rows behind the sequence are zero.
struct Expected {
  Matrix k_decayed, q_decayed, k_restored;  // [16, 128]
  std::vector<double> g_total;              // [128]
  Matrix inverse, Mqk;                      // [16, 16]
  std::vector<double> beta;                 // [16]
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Fixed lengths, bounded gate, logits, L2 norm on.
Expected expected_tile(const Problem& problem, int64_t b, int64_t tile, int h) {
  const flash_kda_tensor &q = problem.tensor("q"), &k = problem.tensor("k"), &g = problem.tensor("g"),
                         &beta = problem.tensor("beta"), &A_log = problem.tensor("A_log"),
                         &dt_bias = problem.tensor("dt_bias");
  const auto D = static_cast<size_t>(kHeadDim), C = static_cast<size_t>(kTile);
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  Matrix G(C, std::vector<double>(D)), kn = G, qn = G;
  Expected e{G,
             G,
             G,
             std::vector<double>(D),
             Matrix(C, std::vector<double>(C)),
             Matrix(C, std::vector<double>(C)),
             std::vector<double>(C)};
  std::vector<double> sum(D);
  for (int i = 0; i < kTile; ++i) {
    const int64_t t = tile * kTile + i;
    const auto row = static_cast<size_t>(i);
    if (t < problem.shape().T) {
      double qq = 0, kk = 0;
      for (int d = 0; d < kHeadDim; ++d) {
        qq += std::pow(get(q, {b, t, h, d}), 2);
        kk += std::pow(get(k, {b, t, h, d}), 2);
      }
      for (int d = 0; d < kHeadDim; ++d) {
        const auto c = static_cast<size_t>(d);
        qn[row][c] = scale * get(q, {b, t, h, d}) / std::sqrt(qq + kNormEpsilon);
        kn[row][c] = get(k, {b, t, h, d}) / std::sqrt(kk + kNormEpsilon);
        sum[c] += -5.0 * sigmoid(std::exp(get(A_log, {h})) * (get(g, {b, t, h, d}) + get(dt_bias, {h, d})));
      }
      e.beta[row] = sigmoid(get(beta, {b, t, h}));
    }
    G[row] = sum;
  }
  for (size_t d = 0; d < D; ++d) e.g_total[d] = std::exp(sum[d]);
  for (size_t i = 0; i < C; ++i)
    for (size_t d = 0; d < D; ++d) {
      e.k_decayed[i][d] = kn[i][d] * std::exp(G[i][d]);
      e.q_decayed[i][d] = qn[i][d] * std::exp(G[i][d]);
      e.k_restored[i][d] = kn[i][d] * std::exp(sum[d] - G[i][d]);
    }
  Matrix A(C, std::vector<double>(C));
  for (size_t i = 0; i < C; ++i)
    for (size_t j = 0; j <= i; ++j)
      for (size_t d = 0; d < D; ++d) {
        const double decay = std::exp(G[i][d] - G[j][d]);
        if (j < i) A[i][j] += e.beta[i] * kn[i][d] * kn[j][d] * decay;
        e.Mqk[i][j] += qn[i][d] * kn[j][d] * decay;
      }
  for (size_t c = 0; c < C; ++c)
    for (size_t i = 0; i < C; ++i) {
      e.inverse[i][c] = i == c ? 1.0 : 0.0;
      for (size_t j = 0; j < i; ++j) e.inverse[i][c] -= A[i][j] * e.inverse[j][c];
    }
  return e;
}

/// Relative Frobenius error of a matrix whose element (i, j) `actual` reads; 1e300 if anything is not finite.
template <typename Actual>
double relative_error(const Matrix& expected, Actual actual) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    for (size_t j = 0; j < expected[i].size(); ++j) {
      const double value = actual(static_cast<int>(i), static_cast<int>(j));
      if (!std::isfinite(value)) return 1e300;
      error += std::pow(value - expected[i][j], 2);
      norm += std::pow(expected[i][j], 2);
    }
  return std::sqrt(error / norm);
}

class Stages : public testing::TestWithParam<Family> {};

TEST_P(Stages, EveryResultOfPrepareIsRight) {
  Case c = cuda_small_cases()[0];
  c.cuda_path = FLASH_KDA_CUDA_PATH_TWO_KERNEL;  // B 2, T 37: two full tiles and one of five tokens
  c.family = GetParam();
  const Problem problem(c, 1, FLASH_KDA_BACKEND_CUDA);
  const DeviceProblem device(problem);
  const Params params = validate(device.args(), Purpose::kRun);
  launch_prepare(params, input_maps(params));
  const int64_t slots = slot_bound(params), tiles = tiles_of(c.T);
  std::vector<unsigned char> images(static_cast<size_t>(image_offset(slots, 0, params.HV)));
  cuda::check(cudaMemcpy(images.data(), device.workspace(), images.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");

  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t tile = 0; tile < tiles; ++tile)
      for (int h = 0; h < params.HV; ++h) {
        SCOPED_TRACE(testing::Message() << "batch " << b << " tile " << tile << " head " << h);
        const unsigned char* const image = &images[static_cast<size_t>(image_offset(b * tiles + tile, h, params.HV))];
        const Expected e = expected_tile(problem, b, tile, h);
        const auto bf16_at = [&](int offset) {
          uint16_t bits = 0;
          std::memcpy(&bits, image + offset, sizeof bits);
          return static_cast<double>(bf16_to_float(bits));
        };
        const auto fp32_at = [&](int offset) {
          float value = 0;
          std::memcpy(&value, image + offset, sizeof value);
          return static_cast<double>(value);
        };
        const auto tile_at = [&](int base) { return [=](int i, int d) { return bf16_at(base + tile_offset(i, d)); }; };
        const auto square_at = [&](int base) {
          return [=](int i, int j) { return bf16_at(base + square_offset(i, j)); };
        };
        // One rounding to bf16 moves an element by at most 2^-8 of itself; products of two rounded operands, and an
        // inverse of them, lose a few times that.
        const double once = 1.0 / 256, products = 2.0 / 256;
        EXPECT_LE(relative_error(e.k_decayed, tile_at(Image::k_decayed)), once);
        EXPECT_LE(relative_error(e.q_decayed, tile_at(Image::q_decayed)), once);
        EXPECT_LE(relative_error(e.k_restored, tile_at(Image::k_restored)), once);
        EXPECT_LE(relative_error({e.g_total}, [&](int, int d) { return fp32_at(Image::g_total + 4 * d); }), 1e-5);
        EXPECT_LE(relative_error({e.beta}, [&](int, int i) { return fp32_at(Image::beta + 4 * i); }), 1e-5);
        EXPECT_LE(relative_error(e.inverse, square_at(Image::inverse)), products);
        EXPECT_LE(relative_error(e.Mqk, square_at(Image::Mqk)), products);
      }
}

INSTANTIATE_TEST_SUITE_P(Families, Stages,
                         testing::Values(Family::kF1, Family::kF2, Family::kF3, Family::kF5, Family::kF6));

}  // namespace
}  // namespace flash_kda::test
