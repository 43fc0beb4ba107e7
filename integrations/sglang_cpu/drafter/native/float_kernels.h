#pragma once

#include <cstddef>
#include <span>

namespace agentspec {

// Outputs of a matrix that are computed side by side; packed matrices are padded to a multiple of it.
inline constexpr std::size_t kPanelWidth = 16;
// Sizes of vectors must be multiples of it.
inline constexpr std::size_t kLanes = 8;

// A query head group's view of what is cached: one pointer a position, to that position's keys or values of
// all heads.
struct AttentionRows {
  std::span<const float* const> keys;
  std::span<const float* const> values;
};

// Arithmetic on float32 vectors, as fast as the machine's instructions allow. Sums are in no promised order.
struct FloatKernels {
  // out[n, outputs] = x[n, inputs] times a packed matrix, plus what `out` holds where `add`.
  void (*multiply)(const float* x, std::size_t n, std::size_t inputs, const float* panels,
                   std::size_t outputs, float* out, bool add);
  // out = x / sqrt(mean(x^2) + eps) * weight.
  void (*normalise)(const float* x, const float* weight, std::size_t size, float eps, float* out);
  // out[size] = silu(x[:size]) * x[size:].
  void (*gate)(const float* x, std::size_t size, float* out);
  // out[size] += silu(x).
  void (*add_silu)(const float* x, std::size_t size, float* out);
  // Turns each of `heads` vectors of `size` by the angles of a position, [cos, sin] of size / 2 each.
  void (*rotate)(float* x, std::size_t heads, std::size_t size, const float* cos_sin);
  // Softmax attention of one token: q[heads, size] to out[heads, size]; `scores` has room for one a position.
  void (*attend)(const float* q, std::size_t heads, std::size_t kv_heads, std::size_t size,
                 const AttentionRows& rows, float scale, float* scores, float* out);
  // x = softmax(x); the size is any.
  void (*softmax)(float* x, std::size_t size);
};

// Those for the processor that this runs on.
const FloatKernels& float_kernels();
// Those that run on every processor that this was compiled for.
const FloatKernels& portable_float_kernels();

}  // namespace agentspec
