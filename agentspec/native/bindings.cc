// The Python module agentspec._core. Arguments are strict: 1-D contiguous int32 arrays on the CPU, never
// converted. Every call gives the interpreter's lock back before it takes the engine's, so the two are never
// waited for together.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "errors.h"
#include "tree_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Int32Array = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using Array1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <typename T>
using Array2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;
template <typename T>
using Array3 = nb::ndarray<nb::numpy, T, nb::ndim<3>>;

std::span<const std::int32_t> view(const Int32Array& array) { return {array.data(), array.size()}; }

// Hands a result to Python, where the arrays made from its vectors keep it alive.
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

nb::tuple draft(agentspec::Engine& engine, const std::vector<std::string>& request_ids,
                const std::optional<Int32Array>& max_tokens) {
  agentspec::DraftBatch batch;
  {
    const nb::gil_scoped_release release;
    batch = engine.draft(request_ids, max_tokens ? view(*max_tokens) : std::span<const std::int32_t>{});
  }
  const auto [b, owner] = hand_over(std::move(batch));
  return nb::make_tuple(array1(b->offsets, owner), array1(b->tokens, owner), array1(b->parents, owner),
                        array1(b->estimates, owner), array1(b->sources, owner), array1(b->match_lens, owner),
                        array1(b->scores, owner));
}

nb::tuple build_tree_arrays(const Int32Array& offsets, const Int32Array& tokens, const Int32Array& parents,
                            std::size_t width) {
  agentspec::TreeArrays arrays;
  {
    const nb::gil_scoped_release release;
    arrays = agentspec::build_tree_arrays(view(offsets), view(tokens), view(parents), width);
  }
  const auto [a, owner] = hand_over(std::move(arrays));
  const std::size_t rows = a->num_nodes.size();
  const auto wide = [&](std::vector<std::int64_t>& values) {
    return Array2<std::int64_t>(values.data(), {rows, width}, owner);
  };
  return nb::make_tuple(wide(a->tokens), wide(a->depths),
                        Array3<bool>(reinterpret_cast<bool*>(a->mask.data()), {rows, width, width}, owner),
                        wide(a->next_token), wide(a->next_sibling), array1(a->num_nodes, owner));
}

nb::tuple stats(const agentspec::Engine& engine) {
  agentspec::EngineStats s;
  {
    const nb::gil_scoped_release release;
    s = engine.stats();
  }
  return nb::make_tuple(s.open_requests, s.request_bytes, s.global.bytes, s.global.namespaces,
                        s.global.outputs, s.global.output_tokens, s.global.evicted_outputs);
}

// Raises the class of agentspec.errors that has the same name as the native one.
void translate(const std::exception_ptr& pointer, void*) {
  const auto raise = [](const char* name, const std::exception& error) {
    const nb::object type = nb::module_::import_("agentspec.errors").attr(name);
    PyErr_SetString(type.ptr(), error.what());
  };
  try {
    std::rethrow_exception(pointer);
  } catch (const agentspec::TokenError& error) {
    raise("TokenError", error);
  } catch (const agentspec::ConfigError& error) {
    raise("ConfigError", error);
  } catch (const agentspec::DuplicateRequestError& error) {
    raise("DuplicateRequestError", error);
  } catch (const agentspec::UnknownRequestError& error) {
    raise("UnknownRequestError", error);
  } catch (const agentspec::IntegrityError& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  // A server that is killed leaves its engine behind; that is no leak worth a page of warnings.
  nb::set_leak_warnings(false);
  m.doc() = "The native core of agentspec; use it through agentspec.Engine.";
  nb::register_exception_translator(translate);
  const auto release = nb::call_guard<nb::gil_scoped_release>();

  nb::class_<agentspec::Engine>(m, "Engine")
      .def(
          "__init__",
          [](agentspec::Engine* self, std::int32_t num_token_ids, std::int32_t max_pattern, double alpha,
             double min_token_prob, bool chain, std::int32_t max_draft_tokens, std::size_t budget_bytes) {
            new (self) agentspec::Engine({.num_token_ids = num_token_ids,
                                          .limits = {.max_pattern = max_pattern,
                                                     .alpha = alpha,
                                                     .min_token_prob = min_token_prob,
                                                     .chain = chain},
                                          .max_draft_tokens = max_draft_tokens,
                                          .budget_bytes = budget_bytes});
          },
          nb::kw_only(), "num_token_ids"_a, "max_pattern"_a, "alpha"_a, "min_token_prob"_a, "chain"_a,
          "max_draft_tokens"_a, "budget_bytes"_a)
      .def(
          "open",
          [](agentspec::Engine& self, const std::string& request_id, const Int32Array& prompt,
             const std::string& name) { self.open(request_id, view(prompt), name); },
          "request_id"_a, "prompt"_a.noconvert(), "namespace"_a, release)
      .def(
          "extend",
          [](agentspec::Engine& self, const std::string& request_id, const Int32Array& tokens) {
            self.extend(request_id, view(tokens));
          },
          "request_id"_a, "tokens"_a.noconvert(), release)
      .def("draft", &draft, "request_ids"_a, "max_tokens"_a.noconvert().none())
      .def("close", &agentspec::Engine::close, "request_id"_a, "keep"_a, "num_output_tokens"_a.none(),
           release)
      .def("num_tokens", &agentspec::Engine::num_tokens, "request_id"_a, release)
      .def("is_open", &agentspec::Engine::is_open, "request_id"_a, release)
      .def("clear", &agentspec::Engine::clear, release)
      .def("stats", &stats)
      .def("check_integrity", &agentspec::Engine::check_integrity, release);
  m.def("build_tree_arrays", &build_tree_arrays, "offsets"_a.noconvert(), "tokens"_a.noconvert(),
        "parents"_a.noconvert(), "width"_a);
}
