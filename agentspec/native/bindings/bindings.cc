// The Python module agentspec._core. Array arguments are strict: 1-D contiguous int32 arrays on the CPU,
// which are never converted. Every call releases the GIL before it locks the engine's mutex, so no thread
// waits for one of them while it holds the other.

#include "bindings/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "common_subsequence.h"
#include "drafting/tree_mask.h"
#include "engine.h"
#include "errors.h"
#include "index/suffix_array/segment_file.h"
#include "index/suffix_array/suffix_array.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace agentspec::bindings;

namespace {

// Views of a tuple's strings. They are valid until the next call on this thread, and while the tuple lives.
std::span<const std::string_view> views_of(const nb::tuple& strings) {
  static thread_local std::vector<std::string_view> views;
  views.clear();
  for (const nb::handle item : strings) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(item.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    views.emplace_back(text, static_cast<std::size_t>(size));
  }
  return views;
}

nb::tuple draft(agentspec::Engine& engine, const nb::tuple& request_ids,
                const std::optional<Int32Array>& max_tokens) {
  agentspec::DraftBatch batch;
  const std::span<const std::string_view> ids = views_of(request_ids);
  {
    const nb::gil_scoped_release release;
    engine.draft(ids, view(max_tokens), batch);
  }
  const auto [b, owner] = hand_over(std::move(batch));
  return nb::make_tuple(array1(b->offsets, owner), array1(b->tokens, owner), array1(b->parents, owner),
                        array1(b->estimates, owner), array1(b->sources, owner), array1(b->match_lens, owner),
                        array1(b->scores, owner));
}

// The caller's arrays into which drafts are written, batch after batch. This object keeps them alive.
class DraftBuffers {
 public:
  DraftBuffers(const Buffer<std::int32_t>& offsets, const Buffer<std::int32_t>& tokens,
               const Buffer<std::int32_t>& parents, const Buffer<float>& estimates,
               const Buffer<std::uint8_t>& sources, const Buffer<std::int32_t>& match_lens,
               const Buffer<float>& scores, const Buffer<std::uint8_t>& outcomes,
               const Buffer<std::int32_t>& rooms)
      : owners_{offsets, tokens, parents, estimates, sources, match_lens, scores, outcomes, rooms},
        spans_{view(offsets),    view(tokens), view(parents),  view(estimates), view(sources),
               view(match_lens), view(scores), view(outcomes), view(rooms)} {
    const std::size_t rows = scores.size();
    const std::size_t nodes = tokens.size();
    if (offsets.size() == rows + 1 && match_lens.size() == rows && outcomes.size() == rows &&
        rooms.size() == rows && parents.size() == nodes && estimates.size() == nodes &&
        sources.size() == nodes) {
      return;
    }
    throw agentspec::ConfigError("arrays of drafts must agree in their numbers of rows and nodes");
  }

  [[nodiscard]] const agentspec::DraftSpans& spans() const { return spans_; }

 private:
  std::tuple<Buffer<std::int32_t>, Buffer<std::int32_t>, Buffer<std::int32_t>, Buffer<float>,
             Buffer<std::uint8_t>, Buffer<std::int32_t>, Buffer<float>, Buffer<std::uint8_t>,
             Buffer<std::int32_t>>
      owners_;
  agentspec::DraftSpans spans_;
};

using Int64Array = Vector<std::int64_t>;

// Throws unless the array has one entry per row. An array that is left out is allowed.
template <typename Array>
void check_rows(const char* name, const std::optional<Array>& array, std::size_t rows) {
  if (!array || array->size() == rows) return;
  throw agentspec::ConfigError(std::string(name) + " must have an entry for each of " + std::to_string(rows) +
                               " rows, got " + std::to_string(array->size()) +
                               "; pass those of the same batch");
}

std::span<const std::int64_t> padding_of(const std::optional<Int64Array>& padding, std::size_t rows) {
  check_rows("padding", padding, rows);
  return view(padding);
}

agentspec::Engine::Rows rows(const agentspec::Engine& engine, const nb::tuple& request_ids) {
  const std::span<const std::string_view> ids = views_of(request_ids);
  const nb::gil_scoped_release release;
  return engine.rows(ids);
}

std::size_t follow(agentspec::Engine& engine, const agentspec::Engine::Rows& rows,
                   const Table<std::int64_t>& accepted, const Int64Array& ends,
                   const std::optional<Int64Array>& padding) {
  const nb::gil_scoped_release release;
  return engine.follow(rows, view(accepted), accepted.shape(1), view(ends), padding_of(padding, rows.size()));
}

std::size_t draft_followed(agentspec::Engine& engine, const agentspec::Engine::Rows& rows,
                           const std::optional<Int64Array>& padding, std::int32_t max_tokens,
                           const DraftBuffers& out, const Buffer<std::int64_t>& ends) {
  const nb::gil_scoped_release release;
  return engine.draft_followed(rows, padding_of(padding, rows.size()), max_tokens, out.spans(), view(ends));
}

struct TrialArrays {
  std::vector<std::int32_t> weights;   // [n, kNumSlots + 1]; the bias is last, and a missing context has -1
  std::vector<float> fractions;        // [n, kNumSlots + 1]
  std::vector<float> estimates;        // [n]
  std::vector<std::uint8_t> accepted;  // [n]
};

nb::tuple trials(agentspec::Engine& engine, const std::string& request_id, const Int32Array& truth) {
  TrialArrays arrays;
  constexpr std::size_t kWidth = agentspec::kNumSlots + 1;
  {
    const nb::gil_scoped_release release;
    std::vector<agentspec::Drafter::Trial> rows;
    engine.trials(request_id, view(truth), rows);
    arrays.weights.assign(rows.size() * kWidth, -1);
    arrays.fractions.assign(rows.size() * kWidth, 0.0F);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const agentspec::Features& features = rows[row].features;
      for (std::size_t i = 0; i < features.size; ++i) {
        arrays.weights[row * kWidth + i] = features.items[i].weight;
        arrays.fractions[row * kWidth + i] = static_cast<float>(features.items[i].fraction) / 65535.0F;
      }
      arrays.weights[row * kWidth + kWidth - 1] = features.bias;
      arrays.estimates.push_back(rows[row].estimate);
      arrays.accepted.push_back(rows[row].accepted ? 1 : 0);
    }
  }
  const auto [a, owner] = hand_over(std::move(arrays));
  const std::size_t num_rows = a->estimates.size();
  return nb::make_tuple(Array2<std::int32_t>(a->weights.data(), {num_rows, kWidth}, owner),
                        Array2<float>(a->fractions.data(), {num_rows, kWidth}, owner),
                        array1(a->estimates, owner), array1(a->accepted, owner));
}

nb::object weights(const agentspec::Engine& engine, const std::string& name) {
  std::vector<float> values;
  {
    const nb::gil_scoped_release release;
    values = engine.weights(name);
  }
  return hand_over_array(std::move(values));
}

// The caller's memory into which trees are written, batch after batch. This object keeps it alive.
class TreeBuffers {
 public:
  // `memory` starts with a batch's tokens, depths, first children and next siblings, one after another,
  // followed by its mask, so that one copy moves all of them.
  TreeBuffers(const Buffer<std::int64_t>& memory, const Buffer<std::int32_t>& num_nodes)
      : memory_(memory), num_nodes_(num_nodes) {}

  // The arrays of a batch of `rows` rows.
  [[nodiscard]] agentspec::TreeArrays spans(std::size_t rows, std::size_t width) const {
    const std::size_t nodes = rows * width;
    if (rows > num_nodes_.size() || 4 * nodes + (nodes * width + 7) / 8 > memory_.size()) {
      throw agentspec::ConfigError("the buffers must have room for " + std::to_string(rows) + " rows of " +
                                   std::to_string(width) + " nodes, got room for " +
                                   std::to_string(num_nodes_.size()) + " rows and " +
                                   std::to_string(memory_.size() * 8) + " bytes in all; make larger ones");
    }
    std::int64_t* const first = memory_.data();
    return {{first, nodes},
            {first + nodes, nodes},
            {first + 2 * nodes, nodes},
            {first + 3 * nodes, nodes},
            {reinterpret_cast<bool*>(first + 4 * nodes), nodes * width},
            {num_nodes_.data(), rows}};
  }

 private:
  Buffer<std::int64_t> memory_;
  Buffer<std::int32_t> num_nodes_;
};

void build_tree_arrays(const Int32Array& offsets, const Int32Array& tokens, const Int32Array& parents,
                       const std::optional<Int32Array>& num_drafted, std::size_t width,
                       const TreeBuffers& out) {
  const nb::gil_scoped_release release;
  const std::size_t rows = offsets.size() == 0 ? 0 : offsets.size() - 1;
  check_rows("num_drafted", num_drafted, rows);
  agentspec::build_tree_arrays(view(offsets), view(tokens), view(parents), view(num_drafted), width,
                               out.spans(rows, width));
}

std::array<std::uint8_t, 32> identity_bytes(const nb::bytes& tokenizer) {
  std::array<std::uint8_t, 32> result{};
  const auto* const bytes = static_cast<const std::uint8_t*>(tokenizer.data());
  std::copy_n(bytes, std::min(tokenizer.size(), result.size()), result.begin());
  return result;
}

// tokens: the documents one after another, each ended by kEnd.
void build_corpus(const std::string& path, const Int32Array& tokens, std::int32_t num_token_ids,
                  const nb::bytes& tokenizer) {
  const agentspec::Segment::Identity identity{num_token_ids, identity_bytes(tokenizer),
                                              agentspec::SegmentKind::kCorpus};
  const nb::gil_scoped_release release;
  std::vector<agentspec::OutputRecord> documents;
  const std::span<const agentspec::Token> text = view(tokens);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && text[i - 1] != agentspec::kEnd) continue;
    documents.push_back({documents.size() + 1, static_cast<std::uint32_t>(i), 0, 0});
  }
  agentspec::save(*agentspec::Segment::build(text, documents, identity), path);
}

nb::tuple segment_info(const std::string& path) {
  std::shared_ptr<const agentspec::Segment> segment;
  {
    const nb::gil_scoped_release release;
    segment = agentspec::load(path, nullptr);
  }
  const agentspec::Segment::Identity& identity = segment->identity();
  std::string tokenizer;
  for (const std::uint8_t byte : identity.tokenizer) {
    for (const int digit : {byte >> 4, byte & 15}) tokenizer += "0123456789abcdef"[digit];
  }
  const std::size_t outputs = segment->outputs().size();
  return nb::make_tuple(identity.kind == agentspec::SegmentKind::kCorpus ? "corpus" : "outputs", outputs,
                        segment->tokens().size() - outputs, segment->bytes(), identity.num_token_ids,
                        tokenizer);
}

nb::tuple stats(const agentspec::Engine& engine) {
  agentspec::EngineStats s;
  {
    const nb::gil_scoped_release release;
    s = engine.stats();
  }
  return nb::make_tuple(s.open_requests, s.request_bytes, s.conversation_bytes, s.spared_tokens,
                        s.waiting_outputs, s.corpora, s.global.bytes, s.global.namespaces, s.global.outputs,
                        s.global.output_tokens, s.global.segments, s.global.evicted_outputs);
}

// Raises the class of agentspec.errors with the same name as the native one.
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
  } catch (const agentspec::SegmentError& error) {
    raise("SegmentError", error);
  } catch (const std::system_error& error) {
    raise("SegmentError", error);
  } catch (const agentspec::IntegrityError& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  // A server that is killed leaves its engine behind. That is no leak to warn about.
  nb::set_leak_warnings(false);
  m.doc() = "The native core of agentspec; use it through agentspec.Engine.";
  nb::register_exception_translator(translate);
  const auto release = nb::call_guard<nb::gil_scoped_release>();

  nb::class_<DraftBuffers>(m, "DraftBuffers")
      .def(nb::init<const Buffer<std::int32_t>&, const Buffer<std::int32_t>&, const Buffer<std::int32_t>&,
                    const Buffer<float>&, const Buffer<std::uint8_t>&, const Buffer<std::int32_t>&,
                    const Buffer<float>&, const Buffer<std::uint8_t>&, const Buffer<std::int32_t>&>(),
           "offsets"_a.noconvert(), "tokens"_a.noconvert(), "parents"_a.noconvert(),
           "estimates"_a.noconvert(), "sources"_a.noconvert(), "match_lens"_a.noconvert(),
           "scores"_a.noconvert(), "outcomes"_a.noconvert(), "rooms"_a.noconvert());
  nb::class_<TreeBuffers>(m, "TreeBuffers")
      .def(nb::init<const Buffer<std::int64_t>&, const Buffer<std::int32_t>&>(), "memory"_a.noconvert(),
           "num_nodes"_a.noconvert());
  nb::class_<agentspec::Engine::Rows>(m, "Rows").def("__len__", &agentspec::Engine::Rows::size);
  nb::class_<agentspec::Engine> engine(m, "Engine");
  engine
      .def(
          "__init__",
          [](agentspec::Engine* self, std::int32_t num_token_ids, std::int32_t max_pattern, double alpha,
             double min_token_prob, bool chain, bool own_text, bool plain_rule, std::int32_t max_draft_tokens,
             std::size_t budget_bytes, std::size_t conversation_bytes, std::size_t prompt_tail,
             std::size_t max_growing_tokens, std::size_t max_siblings, std::size_t num_threads,
             bool background, const nb::bytes& tokenizer, const FloatArray& weights, float learning_rate) {
            agentspec::EngineConfig config{.num_token_ids = num_token_ids,
                                           .limits = {.max_pattern = max_pattern,
                                                      .alpha = alpha,
                                                      .min_token_prob = min_token_prob,
                                                      .chain = chain,
                                                      .own_text = own_text},
                                           .plain_rule = plain_rule,
                                           .max_draft_tokens = max_draft_tokens,
                                           .budget_bytes = budget_bytes,
                                           .conversation_bytes = conversation_bytes,
                                           .prompt_tail = prompt_tail,
                                           .max_growing_tokens = max_growing_tokens,
                                           .max_siblings = max_siblings,
                                           .num_threads = num_threads,
                                           .background = background,
                                           .tokenizer = identity_bytes(tokenizer),
                                           .weights = {weights.data(), weights.data() + weights.size()},
                                           .learning_rate = learning_rate};
            new (self) agentspec::Engine(config);
          },
          nb::kw_only(), "num_token_ids"_a, "max_pattern"_a, "alpha"_a, "min_token_prob"_a, "chain"_a,
          "own_text"_a, "plain_rule"_a, "max_draft_tokens"_a, "budget_bytes"_a, "conversation_bytes"_a,
          "prompt_tail"_a, "max_growing_tokens"_a, "max_siblings"_a, "num_threads"_a, "background"_a,
          "tokenizer"_a, "weights"_a.noconvert(), "learning_rate"_a)
      .def(
          "open",
          [](agentspec::Engine& self, const std::string& request_id, const Int32Array& prompt,
             const std::string& name, std::optional<std::size_t> max_length, const std::string& group,
             bool is_shown, const Int32Array& prediction) {
            self.open(request_id, view(prompt), name,
                      {max_length.value_or(agentspec::Engine::kNoLimit), group, is_shown, view(prediction)});
          },
          "request_id"_a, "prompt"_a.noconvert(), "namespace"_a, "max_length"_a.none(), "group"_a,
          "is_shown"_a, "prediction"_a.noconvert(), release)
      .def(
          "extend",
          [](agentspec::Engine& self, const std::string& request_id, const Int32Array& tokens) {
            self.extend(request_id, view(tokens));
          },
          "request_id"_a, "tokens"_a.noconvert(), release)
      .def("draft", &draft, "request_ids"_a, "max_tokens"_a.noconvert().none())
      .def("rows", &rows, "request_ids"_a)
      .def("follow", &follow, "rows"_a, "accepted"_a.noconvert(), "ends"_a.noconvert(),
           "padding"_a.noconvert().none())
      .def("draft_followed", &draft_followed, "rows"_a, "padding"_a.noconvert().none(), "max_tokens"_a,
           "out"_a, "ends"_a.noconvert())
      .def("learn", nb::overload_cast<const agentspec::Engine::Rows&>(&agentspec::Engine::learn), "rows"_a,
           release)
      .def(
          "complete",
          [](agentspec::Engine& self, const std::string& request_id, const Int32Array& output) {
            self.complete(request_id, view(output));
          },
          "request_id"_a, "output"_a.noconvert(), release)
      .def("close", &agentspec::Engine::close, "request_id"_a, "keep"_a, "num_output_tokens"_a.none(),
           release)
      .def("num_tokens", &agentspec::Engine::num_tokens, "request_id"_a, release)
      .def("is_open", &agentspec::Engine::is_open, "request_id"_a, release)
      .def("flush", &agentspec::Engine::flush, release)
      .def("wait_indexed", &agentspec::Engine::wait_indexed, release)
      .def("attach_corpus", &agentspec::Engine::attach_corpus, "path"_a, "namespaces"_a, release)
      .def("detach_corpus", &agentspec::Engine::detach_corpus, "path"_a, release)
      .def("trials", &trials, "request_id"_a, "truth"_a.noconvert())
      .def("weights", &weights, "namespace"_a)
      .def("stats", &stats)
      .def("check_integrity", &agentspec::Engine::check_integrity, release);
  nb::class_<agentspec::CommonSubsequence>(m, "CommonSubsequence")
      .def(
          "__init__",
          [](agentspec::CommonSubsequence* self, const Int32Array& text) {
            new (self) agentspec::CommonSubsequence(view(text));
          },
          "text"_a.noconvert())
      .def(
          "append",
          [](agentspec::CommonSubsequence& self, const Int32Array& tokens) { self.append(view(tokens)); },
          "tokens"_a.noconvert())
      .def("__len__", &agentspec::CommonSubsequence::length);
  bind_goodput(m);
  bind_step(m);
  bind_store(m, engine);
  bind_union(m);
  m.def("build_corpus", &build_corpus, "path"_a, "tokens"_a.noconvert(), "num_token_ids"_a, "tokenizer"_a);
  m.def("segment_info", &segment_info, "path"_a);
  m.attr("NUM_BIASES") = agentspec::Estimator::kNumBiases;
  m.attr("NUM_KNOTS") = agentspec::Estimator::kKnots;
  m.attr("NUM_RECENCIES") = agentspec::Estimator::kRecencies;
  m.attr("NUM_SLOTS") = agentspec::kNumSlots;
  m.attr("GLOBAL_SLOT") = agentspec::kGlobalSlot;
  m.attr("CORPUS_SLOT") = agentspec::kCorpusSlot;
  m.attr("NUM_WEIGHTS") = agentspec::Estimator::kNumWeights;
  m.def("build_tree_arrays", &build_tree_arrays, "offsets"_a.noconvert(), "tokens"_a.noconvert(),
        "parents"_a.noconvert(), "num_drafted"_a.noconvert().none(), "width"_a, "out"_a);
}
