#include "acceptance_head.h"

#include <algorithm>
#include <cmath>

#include "errors.h"
#include "float_kernels.h"

namespace agentspec {
namespace {

std::vector<float> copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace

AcceptanceHead::AcceptanceHead(const AcceptanceWeights& weights)
    : mean_(copy_of(weights.mean)),
      spread_(copy_of(weights.spread)),
      out_(copy_of(weights.out)),
      out_bias_(weights.out_bias),
      scale_(weights.scale),
      shift_(weights.shift),
      farthest_(weights.farthest) {
  const std::size_t size = mean_.size();
  bool fits = size > 0 && size % kLanes == 0 && spread_.size() == size && out_.size() == size;
  for (const AcceptanceLayerWeights& layer : weights.layers) fits = fits && layer.bias.size() == size;
  if (!fits) throw ConfigError("a native acceptance head needs vectors of one size, a multiple of 8");
  for (const AcceptanceLayerWeights& layer : weights.layers) {
    layers_.push_back({PackedMatrix(layer.weight, size, size), copy_of(layer.bias)});
  }
}

std::span<const float> AcceptanceHead::estimate(std::span<const float> states, std::size_t n) {
  const std::size_t size = mean_.size();
  if (states.size() != n * size)
    throw ConfigError("an acceptance head needs a state of its size of each token");
  x_.resize(n * size);
  for (std::size_t i = 0; i < n * size; ++i) x_[i] = (states[i] - mean_[i % size]) / spread_[i % size];
  inner_.resize(n * size);
  for (const Layer& layer : layers_) {
    for (std::size_t i = 0; i < n; ++i) {
      std::ranges::copy(layer.bias, inner_.begin() + static_cast<std::ptrdiff_t>(i * size));
    }
    layer.weight.multiply_add(x_, n, inner_);
    float_kernels().add_silu(inner_.data(), n * size, x_.data());
  }
  estimates_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    float logit = out_bias_;
    for (std::size_t k = 0; k < size; ++k) logit += x_[i * size + k] * out_[k];
    logit = std::clamp(logit, -farthest_, farthest_);
    estimates_[i] = 1.0F / (1.0F + std::exp(-(scale_ * logit + shift_)));
  }
  return estimates_;
}

}  // namespace agentspec
