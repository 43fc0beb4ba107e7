#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agentspec {

// The contexts whose continuations a draft weighs against each other: up to three lengths of pattern in the
// request's own text, three in the global index, two in the corpora; longer patterns first.
inline constexpr int kRequestSlot = 0;
inline constexpr int kGlobalSlot = 3;
inline constexpr int kCorpusSlot = 6;
inline constexpr int kNumSlots = 8;

// How new a continuation is: by the age of its last occurrence in the context, and whether it is the one that
// the context was followed by last.
inline constexpr std::int32_t kNumAges = 4;
struct Recency {
  std::uint8_t age = 0;  // 0: unknown or long ago, up to kNumAges - 1: just now
  bool is_latest = false;
};

// Weights that count for an estimate: of each present context, the two next to its odds. Kept with a drafted
// node until verification has told whether it was accepted.
struct Features {
  struct Item {
    std::uint16_t weight;    // the weights [weight] and [weight + 1] count with 1 - fraction and fraction
    std::uint16_t fraction;  // in units of 1 / 65535
  };
  std::array<Item, kNumSlots> items;
  std::uint8_t size = 0;
  std::uint8_t bias = 0;  // the weight that counts as a whole
};

// Estimates the probability that a continuation is accepted. Its log odds are the sum of a bias by depth and
// of a piecewise linear function of each context's log odds,
//
//     logit P = bias[depth, estimate of the path so far]
//             + sum over contexts of f[slot, length, recency](log((seen + a) / (total - seen + a)))
//
// so that contexts that agree make each other surer, as in logistic mixing. The functions are given by their
// values at whole log odds; `agentspec tune` fits them, and observe() follows what verification accepts.
class Estimator {
 public:
  static constexpr int kLengths = 10;
  static constexpr int kRecencies = 2 * kNumAges;
  static constexpr int kKnots = 13;
  static constexpr float kLowestKnot = -5.0F;
  static constexpr int kDepths = 8;
  static constexpr int kPaths = 6;
  static constexpr int kNumBiases = kDepths * kPaths;
  static constexpr std::size_t kNumWeights =
      kNumBiases + static_cast<std::size_t>(kNumSlots) * kLengths * kRecencies * kKnots;

  // `weights` has kNumWeights values; `rate` is the step of observe(), 0 to keep the weights as they are.
  Estimator(std::span<const float> weights, float rate);

  // The weight that counts for continuations at `depth`, children of a node whose estimate is `path`.
  [[nodiscard]] static std::uint8_t bias(std::int32_t depth, double path);
  // The first weight of a context of `length` tokens.
  [[nodiscard]] static std::uint16_t first_weight(std::size_t slot, std::int32_t length);
  // What a context of that first weight says about a continuation that `seen` of its `total` > 0 occurrences
  // had.
  [[nodiscard]] static Features::Item item(std::uint16_t first_weight, std::int32_t seen, std::int32_t total,
                                           Recency recency);

  [[nodiscard]] float logit(const Features& features) const;
  [[nodiscard]] float estimate(const Features& features) const;  // in (0, 1)

  // One step of logistic regression towards what happened.
  void observe(const Features& features, bool accepted);

  [[nodiscard]] std::span<const float> weights() const { return weights_; }

 private:
  std::vector<float> weights_;
  float rate_;
};

}  // namespace agentspec
