#include "drafting/estimator.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.h"

namespace agentspec {

const std::array<float, Estimator::kTableSize> Estimator::kLogCounts = [] {
  std::array<float, kTableSize> logs{};
  for (std::size_t i = 0; i < logs.size(); ++i) {
    logs[i] = static_cast<float>(std::log(static_cast<double>(i) + kPriorCount));
  }
  return logs;
}();

namespace {

constexpr float kLargestWeight = 8.0F;  // bound of the weights that observe() writes

int length_bucket(std::int32_t length) {
  if (length <= 4) return length - 1;
  if (length <= 6) return 4;
  if (length <= 9) return 5;
  if (length <= 14) return 6;
  if (length <= 24) return 7;
  return length <= 47 ? 8 : 9;
}

int depth_bucket(std::int32_t depth) {
  if (depth <= 4) return depth - 1;
  if (depth <= 7) return 4;
  if (depth <= 11) return 5;
  return depth <= 19 ? 6 : 7;
}

int path_bucket(double path) {
  if (path >= 0.5) return path >= 0.95 ? 0 : path >= 0.8 ? 1 : 2;
  return path >= 0.25 ? 3 : path >= 0.1 ? 4 : 5;
}

}  // namespace

Estimator::Estimator(std::span<const float> weights, float rate)
    : weights_(weights.begin(), weights.end()), rate_(rate) {
  if (weights.size() != kNumWeights) {
    throw ConfigError("the estimator needs " + std::to_string(kNumWeights) + " weights, got " +
                      std::to_string(weights.size()) + "; fit them again with this version");
  }
}

std::uint8_t Estimator::bias(std::int32_t depth, double path) {
  return static_cast<std::uint8_t>(depth_bucket(depth) * kPaths + path_bucket(path));
}

std::uint16_t Estimator::first_weight(std::size_t slot, std::int32_t length) {
  const int function = (static_cast<int>(slot) * kLengths + length_bucket(length)) * kRecencies;
  return static_cast<std::uint16_t>(kNumBiases + function * kKnots);
}

void Estimator::observe(const Features& features, bool accepted) {
  if (rate_ <= 0.0F) return;
  const float step = rate_ * ((accepted ? 1.0F : 0.0F) - estimate(features));
  const auto add = [&](std::size_t weight, float change) {
    weights_[weight] = std::clamp(weights_[weight] + change, -kLargestWeight, kLargestWeight);
  };
  add(features.bias, step);
  for (std::size_t i = 0; i < features.size; ++i) {
    const float fraction = static_cast<float>(features.items[i].fraction) * (1.0F / 65535.0F);
    add(features.items[i].weight, step * (1.0F - fraction));
    add(features.items[i].weight + 1U, step * fraction);
  }
}

}  // namespace agentspec
