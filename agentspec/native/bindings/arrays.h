#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

// The array types that Python passes in and receives, for all Python modules.
namespace agentspec::bindings {

namespace nb = nanobind;

using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Array = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Buffer = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

inline std::span<const std::int32_t> view(const Int32Array& array) { return {array.data(), array.size()}; }
template <typename T>
std::span<T> view(const Buffer<T>& array) {
  return {array.data(), array.size()};
}

// Gives a result to Python. The arrays made from its vectors keep it alive.
template <typename Result>
std::pair<Result*, nb::capsule> hand_over(Result&& result) {
  auto owned = std::make_unique<Result>(std::forward<Result>(result));
  Result* const raw = owned.get();
  nb::capsule owner(raw, [](void* p) noexcept { delete static_cast<Result*>(p); });
  (void)owned.release();
  return {raw, std::move(owner)};
}

template <typename T>
Array1<T> array1(std::vector<T>& values, const nb::capsule& owner) {
  return Array1<T>(values.data(), {values.size()}, owner);
}

}  // namespace agentspec::bindings
