#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>

#include "bindings/bindings.h"
#include "drafting/foreseen_union.h"
#include "drafting/tree_union.h"

using namespace nanobind::literals;

namespace agentspec::bindings {
namespace {

nb::tuple unite_trees(const Int32Array& offsets, const Int32Array& tokens, const Int32Array& parents,
                      const FloatArray& estimates, const Vector<std::uint8_t>& sources,
                      const Int32Array& match_lens, const Table<std::int64_t>& model_parents,
                      const Table<std::int64_t>& model_chosen, const Table<std::int64_t>& model_tokens,
                      const Table<float>& model_estimates, std::int64_t topk, const Vector<bool>& wanted,
                      const Int32Array& rooms, UnionRule rule, bool trees, std::int32_t max_nodes,
                      double min_estimate, double factor) {
  TreeUnion result;
  {
    const nb::gil_scoped_release release;
    result =
        unite({view(offsets), view(tokens), view(parents), view(estimates), view(sources), view(match_lens)},
              {view(model_parents), view(model_chosen), view(model_tokens), view(model_estimates),
               model_parents.shape(1), model_chosen.shape(1), topk},
              view(wanted), view(rooms), {rule, trees, max_nodes, min_estimate, factor});
  }
  const auto [r, owner] = hand_over(std::move(result));
  return nb::make_tuple(array1(r->offsets, owner), array1(r->tokens, owner), array1(r->parents, owner),
                        array1(r->estimates, owner), array1(r->sources, owner), array1(r->match_lens, owner),
                        array1(r->scores, owner), array1(r->model_offsets, owner),
                        array1(r->model_tokens, owner), array1(r->model_parents, owner),
                        array1(r->model_estimates, owner), array1(r->verified, owner),
                        array1(r->alone, owner));
}

nb::tuple followed(const Int32Array& offsets, const Int32Array& tokens, const Int32Array& parents,
                   const FloatArray& estimates, const Table<std::int64_t>& texts, const Int32Array& lengths) {
  FollowedPaths result;
  {
    const nb::gil_scoped_release release;
    result = follow_paths(view(offsets), view(tokens), view(parents), view(estimates), view(texts),
                          texts.shape(1), view(lengths));
  }
  const auto [r, owner] = hand_over(std::move(result));
  return nb::make_tuple(array1(r->lengths, owner), array1(r->beyond, owner));
}

// Keeps the GIL, because it takes some microseconds.
nb::tuple foreseen(const Int32Array& offsets, const Int32Array& parents, const FloatArray& estimates,
                   const Vector<double>& promised, const Vector<bool>& wanted, const Int32Array& rooms,
                   std::int64_t passes, bool trees) {
  const auto [r, owner] =
      hand_over(foresee_union({view(offsets), view(parents), view(estimates), view(promised), view(wanted),
                               view(rooms), passes, trees}));
  return nb::make_tuple(array1(r->offsets, owner), array1(r->parents, owner), array1(r->estimates, owner));
}

}  // namespace

void bind_union(nb::module_& m) {
  nb::enum_<UnionRule>(m, "UnionRule")
      .value("MERGE", UnionRule::kMerge)
      .value("INTERLEAVE", UnionRule::kInterleave)
      .value("BETTER", UnionRule::kBetter)
      .value("MODEL", UnionRule::kModel)
      .value("MODEL_ONLY", UnionRule::kModelOnly);
  m.def("unite_trees", &unite_trees, "offsets"_a.noconvert(), "tokens"_a.noconvert(), "parents"_a.noconvert(),
        "estimates"_a.noconvert(), "sources"_a.noconvert(), "match_lens"_a.noconvert(),
        "model_parents"_a.noconvert(), "model_chosen"_a.noconvert(), "model_tokens"_a.noconvert(),
        "model_estimates"_a.noconvert(), "topk"_a, "wanted"_a.noconvert(), "rooms"_a.noconvert(), "rule"_a,
        "trees"_a, "max_nodes"_a, "min_estimate"_a, "factor"_a);
  m.def("follow_paths", &followed, "offsets"_a.noconvert(), "tokens"_a.noconvert(), "parents"_a.noconvert(),
        "estimates"_a.noconvert(), "texts"_a.noconvert(), "lengths"_a.noconvert());
  m.def("foresee_union", &foreseen, "offsets"_a.noconvert(), "parents"_a.noconvert(),
        "estimates"_a.noconvert(), "promised"_a.noconvert(), "wanted"_a.noconvert(), "rooms"_a.noconvert(),
        "passes"_a, "trees"_a);
}

}  // namespace agentspec::bindings
