#include "packed_matrix.h"

#include <utility>

#include "errors.h"
#include "float_kernels.h"

namespace agentspec {

PackedMatrix::PackedMatrix(std::span<const float> weights, std::size_t outputs, std::size_t inputs)
    : inputs_(inputs), outputs_(outputs) {
  if (weights.size() != outputs * inputs) throw ConfigError("a matrix must have outputs x inputs weights");
  const std::size_t num_panels = (outputs + kPanelWidth - 1) / kPanelWidth;
  std::vector<float> panels(num_panels * kPanelWidth * inputs);
  for (std::size_t output = 0; output < outputs; ++output) {
    float* const panel = panels.data() + output / kPanelWidth * kPanelWidth * inputs + output % kPanelWidth;
    for (std::size_t k = 0; k < inputs; ++k) panel[k * kPanelWidth] = weights[output * inputs + k];
  }
  panels_ = std::make_shared<const std::vector<float>>(std::move(panels));
}

void PackedMatrix::multiply(std::span<const float> x, std::size_t n, std::span<float> out) const {
  run(x, n, out, false);
}

void PackedMatrix::multiply_add(std::span<const float> x, std::size_t n, std::span<float> out) const {
  run(x, n, out, true);
}

void PackedMatrix::run(std::span<const float> x, std::size_t n, std::span<float> out, bool add) const {
  if (x.size() < n * inputs_ || out.size() < n * outputs_)
    throw IntegrityError("a product needs room for its rows");
  float_kernels().multiply(x.data(), n, inputs_, panels_->data(), outputs_, out.data(), add);
}

}  // namespace agentspec
