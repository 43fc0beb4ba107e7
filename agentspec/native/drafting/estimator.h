#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace agentspec {

// The slots of contexts that a draft weighs against each other: up to three pattern lengths in the request's
// own text, three in the global index and two in the corpora. Longer patterns come first.
inline constexpr int kRequestSlot = 0;
inline constexpr int kGlobalSlot = 3;
inline constexpr int kCorpusSlot = 6;
inline constexpr int kNumSlots = 8;

// How recent a continuation is: the age class of its last occurrence in the context, and whether it is the
// context's latest continuation.
inline constexpr std::int32_t kNumAges = 4;
struct Recency {
  std::uint8_t age = 0;  // from 0 (unknown or long ago) to kNumAges - 1 (just now)
  bool is_latest = false;
};

// The weights that count for one estimate. Each present context contributes the two weights next to its log
// odds. They are kept with a drafted node until verification shows whether it was accepted.
struct Features {
  struct Item {
    std::uint16_t weight;    // weights [weight] and [weight + 1] count with 1 - fraction and fraction
    std::uint16_t fraction;  // in units of 1 / 65535
  };
  std::array<Item, kNumSlots> items;
  std::uint8_t size = 0;
  std::uint8_t bias = 0;  // index of the weight that counts fully
};

// Estimates the probability that a continuation is accepted. The log odds of the estimate are a bias by
// depth, plus a piecewise linear function of the log odds in each context:
//
//     logit P = bias[depth, estimate of the path so far]
//             + sum over contexts of f[slot, length, recency](log((seen + a) / (total - seen + a)))
//
// Contexts that agree reinforce each other, as in logistic mixing. The functions are given by their values at
// integer log odds. `agentspec tune` fits them, and observe() updates them from what verification accepts.
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

  // `weights` has kNumWeights values. `rate` is the learning rate of observe(); 0 keeps the weights fixed.
  Estimator(std::span<const float> weights, float rate);

  // The index of the bias for continuations at `depth`, whose parent has the estimate `path`.
  [[nodiscard]] static std::uint8_t bias(std::int32_t depth, double path);
  // The index of the first weight for a context of `length` tokens.
  [[nodiscard]] static std::uint16_t first_weight(std::size_t slot, std::int32_t length);
  // What a context with this first weight says about a continuation that followed `seen` of its `total` > 0
  // occurrences.
  [[nodiscard]] static Features::Item item(std::uint16_t first_weight, std::int32_t seen, std::int32_t total,
                                           Recency recency) {
    const float odds = log_count(seen) - log_count(std::max(total - seen, 0));
    const float place = std::clamp(odds - kLowestKnot, 0.0F, static_cast<float>(kKnots - 1));
    const int knot = std::min(static_cast<int>(place), kKnots - 2);
    const int function = (recency.is_latest ? kNumAges : 0) + recency.age;
    return {static_cast<std::uint16_t>(first_weight + function * kKnots + knot),
            static_cast<std::uint16_t>((place - static_cast<float>(knot)) * 65535.0F + 0.5F)};
  }

  [[nodiscard]] float logit(const Features& features) const {
    float sum = weights_[features.bias];
    for (std::size_t i = 0; i < features.size; ++i) {
      const Features::Item& item = features.items[i];
      const float fraction = static_cast<float>(item.fraction) * (1.0F / 65535.0F);
      const float low = weights_[item.weight];
      sum += low + fraction * (weights_[item.weight + 1U] - low);
    }
    return sum;
  }
  // In (0, 1).
  [[nodiscard]] float estimate(const Features& features) const {
    return 1.0F / (1.0F + std::exp(-std::clamp(logit(features), -15.0F, 15.0F)));
  }

  // Takes one step of logistic regression towards the outcome.
  void observe(const Features& features, bool accepted);

  [[nodiscard]] std::span<const float> weights() const { return weights_; }

 private:
  static constexpr double kPriorCount = 0.4;  // `a` in the formula above
  static constexpr std::size_t kTableSize = 1024;
  static const std::array<float, kTableSize> kLogCounts;

  // log(count + a), from a table for small counts.
  static float log_count(std::int32_t count) {
    if (count < static_cast<std::int32_t>(kTableSize)) return kLogCounts[static_cast<std::size_t>(count)];
    return static_cast<float>(std::log(count + kPriorCount));
  }

  std::vector<float> weights_;
  float rate_;
};

}  // namespace agentspec
