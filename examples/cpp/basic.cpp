// Two sequences of different lengths, packed into one batch, with their states handed on to a second call: a prompt in
// two pieces. Then the same prompt in one piece, which must give the same states.
#include <flash_kda/flash_kda.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kHeads = 2, kDim = 128, kSequences = 2;

/// Activations of a made-up layer: token t of a sequence gets the same numbers wherever it lies in memory.
struct Tokens {
  std::vector<float> q, k, v, g, beta;  // [1, T, H, D], beta [1, T, H]

  void append(int64_t sequence, int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t i = 0; i < kHeads * kDim; ++i) {
        const double x = static_cast<double>(1000 * sequence + t) + 0.37 * static_cast<double>(i);
        q.push_back(static_cast<float>(std::sin(1.3 * x)));
        k.push_back(static_cast<float>(std::sin(1.7 * x)));
        v.push_back(static_cast<float>(std::cos(0.9 * x)));
        g.push_back(static_cast<float>(std::cos(0.6 * x) - 2));
      }
      for (int64_t h = 0; h < kHeads; ++h) beta.push_back(static_cast<float>(h) - 0.5F);
    }
  }
  int64_t count() const { return static_cast<int64_t>(beta.size()) / kHeads; }
};

/// Runs the operator over the packed tokens; `state` [N, H, V, K] is read and written in place. Returns out [1, T, H,
/// V].
std::vector<float> forward(const Tokens& tokens, const std::vector<int32_t>& cu_seqlens, std::vector<float>& state) {
  const int64_t T = tokens.count();
  std::vector<float> out(static_cast<size_t>(T * kHeads * kDim));
  const auto view = [&](const std::vector<float>& x) {
    return flash_kda::tensor(x.data(), FLASH_KDA_F32, {1, T, kHeads, kDim});
  };
  flash_kda::ForwardArgs args;  // bounded gate, beta as logits, L2 norm on, CPU
  args.q = view(tokens.q);
  args.k = view(tokens.k);
  args.v = view(tokens.v);
  args.g = view(tokens.g);
  args.beta = flash_kda::tensor(tokens.beta.data(), FLASH_KDA_F32, {1, T, kHeads});
  args.cu_seqlens = flash_kda::tensor(cu_seqlens.data(), FLASH_KDA_I32, {kSequences + 1});
  args.initial_state = flash_kda::tensor(state.data(), FLASH_KDA_F32, {kSequences, kHeads, kDim, kDim});
  args.final_state = args.initial_state;
  args.out = view(out);
  flash_kda::forward(args);
  return out;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

int main() {
  const size_t state_size = kSequences * kHeads * kDim * kDim;
  try {
    // Sequence 0 has 100 + 60 tokens, sequence 1 has 30 + 1.
    Tokens first, second, whole;
    first.append(0, 0, 100);
    first.append(1, 0, 30);
    second.append(0, 100, 160);
    second.append(1, 30, 31);
    whole.append(0, 0, 160);
    whole.append(1, 0, 31);

    std::vector<float> pieces(state_size), once(state_size);  // zeros
    forward(first, {0, 100, 130}, pieces);
    forward(second, {0, 60, 61}, pieces);
    forward(whole, {0, 160, 191}, once);

    const double difference = relative_difference(pieces, once);
    std::printf("FlashKDA %s: in two pieces and in one, the states differ by %.1e (relative)\n",
                flash_kda::version().c_str(), difference);
    return difference < 1e-5 ? 0 : 1;
  } catch (const flash_kda::Error& error) {
    std::fprintf(stderr, "refused: %s\n", error.what());
    return 2;
  }
}
