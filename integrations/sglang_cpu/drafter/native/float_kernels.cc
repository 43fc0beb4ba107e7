#include "float_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// Each kernel is written once, as an inline function on vectors that the compiler maps to the instructions of
// the function it is inlined into: once with AVX2 and FMA, once without. Vectors are never passed by value,
// since how that is done differs between the two.

#define AGENTSPEC_INLINE [[gnu::always_inline]] inline

namespace agentspec {
namespace {

using Lanes [[gnu::vector_size(kLanes * sizeof(float)), gnu::aligned(alignof(float)), gnu::may_alias]] =
    float;
using IntLanes [[gnu::vector_size(kLanes * sizeof(float))]] = std::int32_t;

AGENTSPEC_INLINE const Lanes& at(const float* p) { return *reinterpret_cast<const Lanes*>(p); }
AGENTSPEC_INLINE Lanes& at(float* p) { return *reinterpret_cast<Lanes*>(p); }

AGENTSPEC_INLINE float sum_of(const Lanes& x) {
  return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}

// sums[i] = the sum of parts[i]'s lanes.
AGENTSPEC_INLINE void sums_of(const Lanes (&parts)[kLanes], Lanes& sums) {
  Lanes pairs[kLanes / 2];
  for (std::size_t i = 0; i < kLanes / 2; ++i) {
    pairs[i] = __builtin_shufflevector(parts[2 * i], parts[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
               __builtin_shufflevector(parts[2 * i], parts[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  Lanes fours[2];
  for (std::size_t i = 0; i < 2; ++i) {
    fours[i] = __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  sums = __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// x = e^x, to 2e-7 of it; what is below the smallest normal number is near that.
AGENTSPEC_INLINE void exp_of(Lanes& x) {
  constexpr float kLog2E = 1.44269504F;
  // ln 2 in two parts, the first with few digits, so that n times it is exact.
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  // Adding it rounds to an integer.
  constexpr float kRound = 12582912.0F;
  x = x > -87.0F ? x : Lanes{} - 87.0F;
  x = x < 88.0F ? x : Lanes{} + 88.0F;
  const Lanes n = (x * kLog2E + kRound) - kRound;
  const Lanes r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor's series on [-ln 2 / 2, ln 2 / 2].
  Lanes p = r * (1.0F / 5040.0F) + (1.0F / 720.0F);
  p = p * r + (1.0F / 120.0F);
  p = p * r + (1.0F / 24.0F);
  p = p * r + (1.0F / 6.0F);
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const IntLanes exponent = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  x = p * scale;
}

// Rows x panels of a product. `width`: how many of the outputs there are, the rest being padding.
template <std::size_t kRows, std::size_t kPanels>
AGENTSPEC_INLINE void multiply_block(const float* x, std::size_t inputs, const float* panels,
                                     std::size_t outputs, std::size_t width, float* out, bool add) {
  constexpr std::size_t kVectors = kPanels * kPanelWidth / kLanes;
  constexpr std::size_t kOfPanel = kPanelWidth / kLanes;
  Lanes sums[kRows][kVectors] = {};
  for (std::size_t k = 0; k < inputs; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Lanes w = at(panels + ((v / kOfPanel) * inputs + k) * kPanelWidth + (v % kOfPanel) * kLanes);
      for (std::size_t r = 0; r < kRows; ++r) sums[r][v] += w * x[r * inputs + k];
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    float* const row = out + r * outputs;
    if (width == kPanels * kPanelWidth) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        if (add) sums[r][v] += at(row + v * kLanes);
        at(row + v * kLanes) = sums[r][v];
      }
    } else {
      for (std::size_t i = 0; i < width; ++i)
        row[i] = sums[r][i / kLanes][i % kLanes] + (add ? row[i] : 0.0F);
    }
  }
}

template <std::size_t kRows, std::size_t kPanels>
AGENTSPEC_INLINE void multiply_rows(const float* x, std::size_t inputs, const float* panels,
                                    std::size_t outputs, float* out, bool add) {
  for (std::size_t begin = 0; begin < outputs; begin += kPanels * kPanelWidth) {
    const std::size_t width = std::min(outputs - begin, kPanels * kPanelWidth);
    const float* const first = panels + begin * inputs;
    // The last panels may be fewer.
    if (kPanels > 1 && width <= kPanelWidth) {
      multiply_block<kRows, 1>(x, inputs, first, outputs, width, out + begin, add);
    } else {
      multiply_block<kRows, kPanels>(x, inputs, first, outputs, width, out + begin, add);
    }
  }
}

// A row or two wait for the matrix to come from memory; more take it panel by panel, each while it is near.
// Four rows of a panel are what registers hold.
AGENTSPEC_INLINE void multiply(const float* x, std::size_t n, std::size_t inputs, const float* panels,
                               std::size_t outputs, float* out, bool add) {
  constexpr std::size_t kRows = 4;
  if (n == 1) return multiply_rows<1, 2>(x, inputs, panels, outputs, out, add);
  if (n == 2) return multiply_rows<2, 2>(x, inputs, panels, outputs, out, add);
  const std::size_t whole = n - n % kRows;
  for (std::size_t begin = 0; begin < outputs; begin += kPanelWidth) {
    const std::size_t width = std::min(outputs - begin, kPanelWidth);
    const float* const panel = panels + begin * inputs;
    float* const first = out + begin;
    for (std::size_t row = 0; row < whole; row += kRows) {
      multiply_block<kRows, 1>(x + row * inputs, inputs, panel, outputs, width, first + row * outputs, add);
    }
    const float* const rest = x + whole * inputs;
    float* const to = first + whole * outputs;
    if (n - whole == 3) multiply_block<3, 1>(rest, inputs, panel, outputs, width, to, add);
    if (n - whole == 2) multiply_block<2, 1>(rest, inputs, panel, outputs, width, to, add);
    if (n - whole == 1) multiply_block<1, 1>(rest, inputs, panel, outputs, width, to, add);
  }
}

AGENTSPEC_INLINE void normalise(const float* x, const float* weight, std::size_t size, float eps,
                                float* out) {
  Lanes squares{};
  for (std::size_t i = 0; i < size; i += kLanes) squares += at(x + i) * at(x + i);
  const float factor = 1.0F / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps);
  for (std::size_t i = 0; i < size; i += kLanes) at(out + i) = at(x + i) * factor * at(weight + i);
}

AGENTSPEC_INLINE void gate(const float* x, std::size_t size, float* out) {
  for (std::size_t i = 0; i < size; i += kLanes) {
    Lanes e = -at(x + i);
    exp_of(e);
    at(out + i) = at(x + i) / (e + 1.0F) * at(x + size + i);
  }
}

AGENTSPEC_INLINE void add_silu(const float* x, std::size_t size, float* out) {
  for (std::size_t i = 0; i < size; i += kLanes) {
    Lanes e = -at(x + i);
    exp_of(e);
    at(out + i) += at(x + i) / (e + 1.0F);
  }
}

AGENTSPEC_INLINE void rotate(float* x, std::size_t heads, std::size_t size, const float* cos_sin) {
  const std::size_t half = size / 2;
  for (std::size_t head = 0; head < heads; ++head) {
    float* const first = x + head * size;
    for (std::size_t i = 0; i < half; i += kLanes) {
      const Lanes a = at(first + i);
      const Lanes b = at(first + half + i);
      const Lanes c = at(cos_sin + i);
      const Lanes s = at(cos_sin + half + i);
      at(first + i) = a * c - b * s;
      at(first + half + i) = b * c + a * s;
    }
  }
}

AGENTSPEC_INLINE void softmax(float* x, std::size_t size) {
  const std::size_t whole = size - size % kLanes;
  Lanes largest_of = Lanes{} + x[0];
  for (std::size_t i = 0; i < whole; i += kLanes)
    largest_of = at(x + i) > largest_of ? at(x + i) : largest_of;
  float largest = x[0];
  for (std::size_t i = 0; i < kLanes; ++i) largest = std::max(largest, largest_of[i]);
  for (std::size_t i = whole; i < size; ++i) largest = std::max(largest, x[i]);
  Lanes sums{};
  for (std::size_t i = 0; i < whole; i += kLanes) {
    Lanes e = at(x + i) - largest;
    exp_of(e);
    at(x + i) = e;
    sums += e;
  }
  float total = sum_of(sums);
  for (std::size_t i = whole; i < size; ++i) {
    x[i] = std::exp(x[i] - largest);
    total += x[i];
  }
  const float factor = 1.0F / total;
  for (std::size_t i = 0; i < size; ++i) x[i] *= factor;
}

// The products of a query with a key, lane by lane.
AGENTSPEC_INLINE void multiply_key(const float* query, const float* key, std::size_t size, Lanes& products) {
  Lanes even{};
  Lanes odd{};
  // The size is a multiple of two vectors, as rotate() needs it to be.
  for (std::size_t i = 0; i < size; i += 2 * kLanes) {
    even += at(query + i) * at(key + i);
    odd += at(query + i + kLanes) * at(key + i + kLanes);
  }
  products = even + odd;
}

// The weighted sum of kVectors lanes of the values.
template <std::size_t kVectors>
AGENTSPEC_INLINE void weigh(const float* weights, std::span<const float* const> values, std::size_t offset,
                            float* out) {
  Lanes sums[kVectors] = {};
  for (std::size_t t = 0; t < values.size(); ++t) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[v] += at(values[t] + offset + v * kLanes) * weights[t];
  }
  for (std::size_t v = 0; v < kVectors; ++v) at(out + v * kLanes) = sums[v];
}

AGENTSPEC_INLINE void attend(const float* q, std::size_t heads, std::size_t kv_heads, std::size_t size,
                             const AttentionRows& rows, float scale, float* scores, float* out) {
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t offset = head / (heads / kv_heads) * size;
    const float* const query = q + head * size;
    const std::size_t whole = rows.keys.size() - rows.keys.size() % kLanes;
    for (std::size_t t = 0; t < whole; t += kLanes) {
      Lanes products[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i)
        multiply_key(query, rows.keys[t + i] + offset, size, products[i]);
      Lanes sums;
      sums_of(products, sums);
      at(scores + t) = sums * scale;
    }
    for (std::size_t t = whole; t < rows.keys.size(); ++t) {
      Lanes products;
      multiply_key(query, rows.keys[t] + offset, size, products);
      scores[t] = sum_of(products) * scale;
    }
    softmax(scores, rows.keys.size());
    float* const result = out + head * size;
    std::size_t i = 0;
    for (; i + kAtOnce * kLanes <= size; i += kAtOnce * kLanes) {
      weigh<kAtOnce>(scores, rows.values, offset + i, result + i);
    }
    for (; i < size; i += kLanes) weigh<1>(scores, rows.values, offset + i, result + i);
  }
}

// The same once more for each set of instructions.
#define AGENTSPEC_KERNELS(NAME, TARGET)                                                                      \
  struct NAME {                                                                                              \
    TARGET static void multiply(const float* x, std::size_t n, std::size_t inputs, const float* panels,      \
                                std::size_t outputs, float* out, bool add) {                                 \
      agentspec::multiply(x, n, inputs, panels, outputs, out, add);                                          \
    }                                                                                                        \
    TARGET static void normalise(const float* x, const float* weight, std::size_t size, float eps,           \
                                 float* out) {                                                               \
      agentspec::normalise(x, weight, size, eps, out);                                                       \
    }                                                                                                        \
    TARGET static void gate(const float* x, std::size_t size, float* out) { agentspec::gate(x, size, out); } \
    TARGET static void add_silu(const float* x, std::size_t size, float* out) {                              \
      agentspec::add_silu(x, size, out);                                                                     \
    }                                                                                                        \
    TARGET static void rotate(float* x, std::size_t heads, std::size_t size, const float* cos_sin) {         \
      agentspec::rotate(x, heads, size, cos_sin);                                                            \
    }                                                                                                        \
    TARGET static void attend(const float* q, std::size_t heads, std::size_t kv_heads, std::size_t size,     \
                              const AttentionRows& rows, float scale, float* scores, float* out) {           \
      agentspec::attend(q, heads, kv_heads, size, rows, scale, scores, out);                                 \
    }                                                                                                        \
    TARGET static void softmax(float* x, std::size_t size) { agentspec::softmax(x, size); }                  \
    static constexpr FloatKernels kAll{multiply, normalise, gate, add_silu, rotate, attend, softmax};        \
  };

AGENTSPEC_KERNELS(Portable, )
#if defined(__x86_64__)
AGENTSPEC_KERNELS(Avx2, [[gnu::target("avx2,fma")]])
#endif

}  // namespace

const FloatKernels& portable_float_kernels() { return Portable::kAll; }

const FloatKernels& float_kernels() {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return Avx2::kAll;
#endif
  return Portable::kAll;
}

}  // namespace agentspec
