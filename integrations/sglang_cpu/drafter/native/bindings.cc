#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "acceptance_head.h"
#include "bindings/arrays.h"
#include "errors.h"
#include "llama.h"
#include "llama_parts.h"
#include "llama_texts.h"
#include "llama_trees.h"

using namespace nanobind::literals;

namespace agentspec::bindings {
namespace {

using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Arrays = std::vector<FloatArray>;

std::span<const float> view(const FloatArray& array) { return {array.data(), array.size()}; }
std::span<const float> view(const std::optional<FloatArray>& array) {
  return array ? view(*array) : std::span<const float>{};
}
std::span<const std::int64_t> view(const Int64Array& array) { return {array.data(), array.size()}; }

// A model with what it refers to: the server's weights and its cache of keys and values.
class BoundLlama {
 public:
  BoundLlama(const LlamaShape& shape, FloatArray embed, FloatArray rotary, std::optional<FloatArray> fc,
             std::optional<FloatArray> fc_bias, std::vector<Arrays> layers, FloatArray norm, FloatArray head,
             std::vector<Buffer<float>> keys, std::vector<Buffer<float>> values, std::size_t num_threads)
      : held_(std::move(layers)),
        caches_held_{std::move(keys), std::move(values)},
        embed_(std::move(embed)),
        rotary_(std::move(rotary)),
        norm_(std::move(norm)),
        fc_bias_(std::move(fc_bias)),
        models_(Llama(shape, weights(fc, head)), num_threads) {
    if (caches_held_[0].size() != caches_held_[1].size()) throw ConfigError("keys and values of each layer");
    for (std::size_t i = 0; i < caches_held_[0].size(); ++i) {
      caches_.push_back({bindings::view(caches_held_[0][i]), bindings::view(caches_held_[1][i])});
    }
  }

  nb::tuple read(const std::vector<Int32Array>& texts, const std::vector<Int64Array>& tokens,
                 const std::optional<FloatArray>& hidden) {
    if (texts.size() != tokens.size()) throw ConfigError("as many texts as lists of tokens");
    struct Result {
      std::vector<float> logits, state;
    } result;
    {
      const nb::gil_scoped_release release;
      std::vector<TextEnd> ends;
      for (std::size_t i = 0; i < texts.size(); ++i)
        ends.push_back({bindings::view(texts[i]), view(tokens[i])});
      read_texts(models_.first(), caches_, ends, view(hidden), result.logits, result.state);
    }
    const auto [r, owner] = hand_over(std::move(result));
    return nb::make_tuple(rows(r->logits, texts.size(), owner), rows(r->state, texts.size(), owner));
  }

  nb::tuple draft(const std::vector<Int32Array>& texts, const FloatArray& topk_p,
                  const Int64Array& topk_index, const std::optional<FloatArray>& hidden,
                  const AcceptanceHead* acceptance, const std::optional<Int64Array>& token_of,
                  std::size_t topk, std::size_t num_steps, std::size_t max_nodes, double least_gain) {
    DraftedTrees trees;
    {
      const nb::gil_scoped_release release;
      std::vector<std::span<const std::int32_t>> slots;
      for (const Int32Array& text : texts) slots.push_back(bindings::view(text));
      trees = draft_trees(models_, caches_, {slots, view(topk_p), view(topk_index), view(hidden)}, acceptance,
                          token_of ? view(*token_of) : std::span<const std::int64_t>{},
                          {topk, num_steps, max_nodes, least_gain});
    }
    const auto [t, owner] = hand_over(std::move(trees));
    return nb::make_tuple(rows(t->parents, t->num_rows, owner), rows(t->chosen, t->num_rows, owner),
                          rows(t->tokens, t->num_rows, owner), rows(t->estimates, t->num_rows, owner),
                          t->num_passes);
  }

 private:
  template <typename T>
  static Array2<T> rows(std::vector<T>& values, std::size_t num_rows, const nb::capsule& owner) {
    return Array2<T>(values.data(), {num_rows, values.size() / num_rows}, owner);
  }

  [[nodiscard]] LlamaWeights weights(const std::optional<FloatArray>& fc, const FloatArray& head) const {
    LlamaWeights found{view(embed_), view(rotary_), view(fc), view(fc_bias_), {}, view(norm_), view(head)};
    for (const Arrays& layer : held_) {
      if (layer.size() != 7) throw ConfigError("a layer has seven arrays");
      found.layers.push_back({view(layer[0]), view(layer[1]), view(layer[2]), view(layer[3]), view(layer[4]),
                              view(layer[5]), view(layer[6])});
    }
    return found;
  }

  std::vector<Arrays> held_;
  std::array<std::vector<Buffer<float>>, 2> caches_held_;
  FloatArray embed_, rotary_, norm_;
  std::optional<FloatArray> fc_bias_;
  std::vector<LayerCache> caches_;
  LlamaParts models_;
};

// `layers`: weight and bias of each.
AcceptanceHead acceptance_head(const FloatArray& mean, const FloatArray& spread,
                               const std::vector<Arrays>& layers, const FloatArray& out, float out_bias,
                               float scale, float shift, float farthest) {
  AcceptanceWeights weights{view(mean), view(spread), {}, view(out), out_bias, scale, shift, farthest};
  for (const Arrays& layer : layers) {
    if (layer.size() != 2) throw ConfigError("a layer of an acceptance head has a weight and a bias");
    weights.layers.push_back({view(layer[0]), view(layer[1])});
  }
  return AcceptanceHead(weights);
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const ConfigError& error) {
    PyErr_SetString(nb::module_::import_("agentspec.errors").attr("ConfigError").ptr(), error.what());
  }
}

}  // namespace
}  // namespace agentspec::bindings

NB_MODULE(_drafter, m) {
  using namespace agentspec;
  using namespace agentspec::bindings;
  // A server that is killed leaves its model behind; that is no leak worth a page of warnings.
  nb::set_leak_warnings(false);
  m.doc() = "Draft models in native code; use them through agentspec.integrations.sglang_cpu.drafter.";
  nb::register_exception_translator(translate);

  nb::class_<AcceptanceHead>(m, "AcceptanceHead")
      .def(
          "__init__",
          [](AcceptanceHead* self, const FloatArray& mean, const FloatArray& spread,
             const std::vector<Arrays>& layers, const FloatArray& out, float out_bias, float scale,
             float shift, float farthest) {
            new (self)
                AcceptanceHead(acceptance_head(mean, spread, layers, out, out_bias, scale, shift, farthest));
          },
          nb::kw_only(), "mean"_a.noconvert(), "spread"_a.noconvert(), "layers"_a.noconvert(),
          "out"_a.noconvert(), "out_bias"_a, "scale"_a, "shift"_a, "farthest"_a);
  nb::class_<BoundLlama>(m, "Llama")
      .def(
          "__init__",
          [](BoundLlama* self, FloatArray embed, FloatArray rotary, std::optional<FloatArray> fc,
             std::optional<FloatArray> fc_bias, std::vector<Arrays> layers, FloatArray norm, FloatArray head,
             std::vector<Buffer<float>> keys, std::vector<Buffer<float>> values, std::size_t hidden,
             std::size_t heads, std::size_t kv_heads, std::size_t head_dim, std::size_t mlp, float eps,
             std::size_t num_threads) {
            if (hidden == 0 || head_dim == 0) throw ConfigError("sizes must be positive");
            const LlamaShape shape{hidden,
                                   heads,
                                   kv_heads,
                                   head_dim,
                                   mlp,
                                   embed.size() / hidden,
                                   head.size() / hidden,
                                   rotary.size() / head_dim,
                                   eps};
            new (self) BoundLlama(shape, std::move(embed), std::move(rotary), std::move(fc),
                                  std::move(fc_bias), std::move(layers), std::move(norm), std::move(head),
                                  std::move(keys), std::move(values), num_threads);
          },
          nb::kw_only(), "embed"_a.noconvert(), "rotary"_a.noconvert(), "fc"_a.noconvert().none(),
          "fc_bias"_a.noconvert().none(), "layers"_a.noconvert(), "norm"_a.noconvert(), "head"_a.noconvert(),
          "keys"_a.noconvert(), "values"_a.noconvert(), "hidden"_a, "heads"_a, "kv_heads"_a, "head_dim"_a,
          "mlp"_a, "eps"_a, "num_threads"_a)
      .def("read", &BoundLlama::read, "texts"_a.noconvert(), "tokens"_a.noconvert(),
           "hidden"_a.noconvert().none())
      .def("draft", &BoundLlama::draft, "texts"_a.noconvert(), "topk_p"_a.noconvert(),
           "topk_index"_a.noconvert(), "hidden"_a.noconvert().none(), "acceptance"_a.none(),
           "token_of"_a.noconvert().none(), nb::kw_only(), "topk"_a, "num_steps"_a, "max_nodes"_a,
           "least_gain"_a);
}
