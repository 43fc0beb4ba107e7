#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine.h"

// What the files of the Python module share.
namespace agentspec::bindings {

namespace nb = nanobind;

// The arrays that Python passes in: memory to write to, and values to read.
template <typename T>
using Buffer = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = Buffer<const T>;
template <typename T>
using Table = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatArray = Vector<float>;
using Int32Array = Vector<std::int32_t>;

// The arrays that Python receives.
template <typename T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

template <typename T>
std::span<T> view(const Buffer<T>& array) {
  return {array.data(), array.size()};
}
template <typename T>
std::span<const T> view(const Table<T>& array) {
  return {array.data(), array.size()};
}
template <typename T>
std::span<const T> view(const std::optional<Vector<T>>& array) {
  return array ? view(*array) : std::span<const T>{};
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

template <typename T>
nb::object hand_over_array(std::vector<T>&& values) {
  const auto [v, owner] = hand_over(std::move(values));
  return nb::cast(array1(*v, owner));
}

// Binds the arithmetic of the goodput controller (goodput.cc).
void bind_goodput(nb::module_& m);
// Binds deletion, files and snapshots (store.cc).
void bind_store(nb::module_& m, nb::class_<Engine>& engine);
// Binds a step's native part (step.cc).
void bind_step(nb::module_& m);
// Binds the union of suffix drafts and the draft model's trees (union.cc).
void bind_union(nb::module_& m);

}  // namespace agentspec::bindings
