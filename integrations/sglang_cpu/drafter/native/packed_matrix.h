#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace agentspec {

// A copy of a linear layer's weights as multiplications read them: panels of kPanelWidth outputs side by
// side, the last one padded with zeros. Copies of it share them.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `weights`: [outputs, inputs].
  PackedMatrix(std::span<const float> weights, std::size_t outputs, std::size_t inputs);

  [[nodiscard]] std::size_t inputs() const { return inputs_; }
  [[nodiscard]] std::size_t outputs() const { return outputs_; }

  // out[n, outputs] = x[n, inputs] times the weights' transpose.
  void multiply(std::span<const float> x, std::size_t n, std::span<float> out) const;
  // The same, plus what is in `out`.
  void multiply_add(std::span<const float> x, std::size_t n, std::span<float> out) const;

 private:
  void run(std::span<const float> x, std::size_t n, std::span<float> out, bool add) const;

  std::size_t inputs_ = 0;
  std::size_t outputs_ = 0;
  std::shared_ptr<const std::vector<float>> panels_;
};

}  // namespace agentspec
