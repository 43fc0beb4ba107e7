#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "packed_matrix.h"

namespace agentspec {

// x + SiLU(A x + b).
struct AcceptanceLayerWeights {
  std::span<const float> weight;  // [hidden, hidden]
  std::span<const float> bias;    // [hidden]
};

struct AcceptanceWeights {
  std::span<const float> mean;    // [hidden], of the states that it was trained on
  std::span<const float> spread;  // [hidden]
  std::vector<AcceptanceLayerWeights> layers;
  std::span<const float> out;  // [hidden]
  float out_bias;
  // Of its logit, cut at `farthest` either way, to that of a probability that comes true.
  float scale;
  float shift;
  float farthest;
};

// The acceptance-prediction head of SpecDec++ (sections 3.2 and 4.1): from a drafter's states to what is
// expected to be accepted of the tokens drafted there. Holds memory that calls share: one thread at a time.
class AcceptanceHead {
 public:
  // Throws ConfigError where the weights do not fit each other.
  explicit AcceptanceHead(const AcceptanceWeights& weights);

  [[nodiscard]] std::size_t hidden_size() const { return mean_.size(); }

  // [n] probabilities of [n, hidden] states.
  std::span<const float> estimate(std::span<const float> states, std::size_t n);

 private:
  struct Layer {
    PackedMatrix weight;
    std::vector<float> bias;
  };

  std::vector<float> mean_, spread_, out_;
  std::vector<Layer> layers_;
  float out_bias_, scale_, shift_, farthest_;
  std::vector<float> x_, inner_, estimates_;
};

}  // namespace agentspec
