#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "engine.h"
#include "index/output_id.h"
#include "index/suffix_array/suffix_array.h"

using namespace nanobind::literals;

namespace agentspec::bindings {
namespace {

// (name, blob, output ids, times, tokens of the outputs). The blob is the segment's own memory, which it
// keeps alive.
nb::tuple sealed_segment(const std::shared_ptr<const Segment>& segment) {
  std::vector<std::uint64_t> ids;
  std::vector<std::int64_t> times;
  std::size_t num_tokens = segment->num_points();
  const std::string* name = nullptr;
  {
    const nb::gil_scoped_release release;
    name = &segment->name();
    ids.reserve(segment->outputs().size());
    times.reserve(segment->outputs().size());
    for (const OutputRecord& output : segment->outputs()) {
      ids.push_back(output.id);
      times.push_back(output.time);
      num_tokens -= output.prompt_tail + 1;
    }
  }
  const auto [held, owner] = hand_over(std::shared_ptr<const Segment>(segment));
  const std::span<const std::byte> blob = (*held)->blob();
  const nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> bytes(
      reinterpret_cast<const std::uint8_t*>(blob.data()), {blob.size()}, owner);
  return nb::make_tuple(*name, bytes, hand_over_array(std::move(ids)), hand_over_array(std::move(times)),
                        num_tokens);
}

nb::tuple snapshot(const Engine& engine, const std::string& name) {
  GlobalSnapshot snapshot;
  {
    const nb::gil_scoped_release release;
    snapshot = engine.snapshot(name);
  }
  nb::list segments;
  for (const auto& segment : snapshot.segments) segments.append(sealed_segment(segment));
  return nb::make_tuple(segments, hand_over_array(std::move(snapshot.unsealed)), snapshot.is_rewriting);
}

nb::object load_segments(Engine& engine, const std::string& name,
                         const std::vector<Vector<std::uint8_t>>& blobs, const Vector<std::uint64_t>& known) {
  std::vector<std::uint64_t> taken;
  {
    const nb::gil_scoped_release release;
    std::vector<std::span<const std::byte>> spans;
    for (const auto& blob : blobs) spans.push_back(std::as_bytes(view(blob)));
    taken = engine.load_segments(name, spans, view(known));
  }
  return hand_over_array(std::move(taken));
}

nb::list namespaces(const Engine& engine) {
  std::vector<NamespaceStats> stats;
  {
    const nb::gil_scoped_release release;
    stats = engine.namespaces();
  }
  nb::list result;
  for (const NamespaceStats& one : stats) {
    result.append(nb::make_tuple(one.name, one.outputs, one.output_tokens, one.bytes));
  }
  return result;
}

}  // namespace

void bind_store(nb::module_& m, nb::class_<Engine>& engine) {
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  engine
      .def(
          "add",
          [](Engine& self, const std::string& name, std::uint64_t output_id, const Int32Array& tokens,
             std::size_t num_prompt_tail,
             std::int64_t time) { return self.add(name, output_id, view(tokens), num_prompt_tail, time); },
          "namespace"_a, "output_id"_a, "tokens"_a.noconvert(), "num_prompt_tail"_a, "time"_a, release)
      .def("clear", &Engine::clear, release)
      .def("erase_namespace", &Engine::erase_namespace, "namespace"_a, release)
      .def("erase_output", &Engine::erase_output, "output_id"_a, release)
      .def("erase_request", &Engine::erase_request, "namespace"_a, "request_id"_a, release)
      .def("expire", &Engine::expire, "namespace"_a, "before"_a, release)
      .def("snapshot", &snapshot, "namespace"_a)
      .def("load_segments", &load_segments, "namespace"_a, "blobs"_a, "known"_a.noconvert())
      .def("namespaces", &namespaces);
  m.def("request_hash", &request_hash, "request_id"_a);
}

}  // namespace agentspec::bindings
