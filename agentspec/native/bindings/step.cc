#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "errors.h"
#include "step/drafting_step.h"
#include "step/step_planner.h"

using namespace nanobind::literals;

namespace agentspec::bindings {
namespace {

template <typename To, typename T>
std::vector<To> copied(const std::optional<Vector<T>>& array) {
  const std::span<const T> values = view(array);
  return {values.begin(), values.end()};
}

nb::tuple told(const NextStep& next) {
  return nb::make_tuple(next.passes, next.width, static_cast<int>(next.reason), next.tokens, next.seconds,
                        next.tokens_with_model, next.seconds_with_model, next.saved);
}

// A StepPlanner with the Goodputs that it plans with.
class Planner {
 public:
  Planner(nb::object suffix_only, nb::object with_model)
      : owners_(nb::make_tuple(suffix_only, with_model)),
        planner_(nb::cast<Goodput&>(suffix_only), nb::cast<Goodput&>(with_model)) {}

  nb::tuple plan(const Int32Array& offsets, const Int32Array& parents, const FloatArray& estimates,
                 const Int32Array& rooms, double context, const PlanningNumbers& numbers) {
    const DraftShapes suffix{view(offsets), view(parents), view(estimates)};
    planner_.foresee(suffix, view(rooms), numbers);
    return told(planner_.plan(suffix, context, numbers));
  }

  double foreseen(std::size_t columns, double exponent, const Buffer<double>& estimated,
                  const Buffer<std::int64_t>& sizes) {
    if (estimated.size() != columns || sizes.size() != columns) {
      throw ConfigError("the sums must have room for " + std::to_string(columns) + " columns");
    }
    return sum_columns(planner_.foreseen(), columns, exponent, {view(estimated), view(sizes)});
  }

 private:
  nb::tuple owners_;
  StepPlanner planner_;
};

// A DraftingStep with the Python arrays that it reads and writes. They are released with the next order,
// because a driver's thread that runs the step must not touch Python's objects.
class Step {
 public:
  Step(nb::object engine, nb::object suffix_only, nb::object with_model, std::size_t max_rows,
       std::size_t max_width, std::int32_t max_drafted, const Buffer<std::int64_t>& trees,
       const Buffer<std::int32_t>& packed, const Buffer<std::int32_t>& num_nodes,
       const Buffer<std::uint8_t>& first_sources, const Buffer<std::uint8_t>& outcomes,
       const Buffer<std::int64_t>& ends, const Buffer<std::int32_t>& rooms, const Buffer<double>& estimated,
       const Buffer<std::int64_t>& sizes)
      : owners_(nb::make_tuple(engine, suffix_only, with_model, trees, packed, num_nodes, first_sources,
                               outcomes, ends, rooms, estimated, sizes)),
        step_(nb::cast<Engine&>(engine), nb::cast<Goodput&>(suffix_only), nb::cast<Goodput&>(with_model),
              max_rows, max_width, max_drafted,
              {view(trees), view(packed), view(num_nodes), view(first_sources), view(outcomes), view(ends),
               view(rooms), view(estimated), view(sizes)}) {}

  void prepare(const nb::list& written, const Engine::Rows& rows,
               const std::optional<Vector<std::int64_t>>& padding, std::int32_t max_tokens, std::size_t width,
               bool unites, bool suffixes, const PlanningNumbers& numbers) {
    if (!step_.is_done()) throw ConfigError("a step must be done before it is prepared again");
    DraftingStep::Order order{.rows = rows,
                              .padding = view(padding),
                              .max_tokens = max_tokens,
                              .suffixes = suffixes,
                              .width = width,
                              .unites = unites,
                              .planning = numbers};
    nb::list kept;
    for (const nb::handle item : written) {
      const auto one = nb::cast<nb::tuple>(item);
      const auto table = nb::cast<Table<std::int64_t>>(one[1]);
      const auto ends = nb::cast<std::optional<Vector<std::int64_t>>>(one[2]);
      const auto of_padding = nb::cast<std::optional<Vector<std::int64_t>>>(one[3]);
      order.written.push_back({.rows = nb::cast<Engine::Rows&>(one[0]),
                               .table = view(table),
                               .columns = table.shape(1),
                               .ends = view(ends),
                               .padding = view(of_padding)});
      kept.append(one);
    }
    step_.prepare(std::move(order));
    of_order_ = nb::make_tuple(kept, padding);
  }

  void run() {
    const nb::gil_scoped_release release;
    step_.run();
  }

  [[nodiscard]] nb::tuple address() {
    return nb::make_tuple(reinterpret_cast<std::uintptr_t>(&agentspec_run_drafting_step),
                          reinterpret_cast<std::uintptr_t>(&step_));
  }

  [[nodiscard]] nb::tuple next() const { return told(step_.next()); }

  [[nodiscard]] double suffixes_followed(const Table<std::int64_t>& table, const Buffer<double>& estimated,
                                         const Buffer<std::int64_t>& sizes) const {
    if (!step_.is_done()) throw ConfigError("a step must be done before its drafts are judged");
    return step_.suffixes_followed(view(table), table.shape(1), {view(estimated), view(sizes)});
  }

  [[nodiscard]] const DraftingStep& step() const { return step_; }

 private:
  nb::tuple owners_;
  nb::object of_order_;
  DraftingStep step_;
};

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<PlanningNumbers>(m, "PlanningNumbers")
      .def(
          "__init__",
          [](PlanningNumbers* self, const Vector<std::int64_t>& widths, const Vector<double>& seconds,
             const std::optional<Vector<double>>& with_model, double rest, double speedup,
             double speedup_alone, double exponent, double exponent_united,
             const std::optional<Vector<double>>& promised, const std::optional<Vector<bool>>& fit,
             std::int64_t passes, bool must_pass, bool cannot_pass, bool trees) {
            new (self) PlanningNumbers{.widths = copied<std::int64_t>(std::optional(widths)),
                                       .seconds = copied<double>(std::optional(seconds)),
                                       .with_model = copied<double>(with_model),
                                       .rest = rest,
                                       .speedup = speedup,
                                       .speedup_alone = speedup_alone,
                                       .exponent = exponent,
                                       .exponent_united = exponent_united,
                                       .promised = copied<double>(promised),
                                       .fit = copied<std::uint8_t>(fit),
                                       .passes = passes,
                                       .must_pass = must_pass,
                                       .cannot_pass = cannot_pass,
                                       .trees = trees};
          },
          nb::kw_only(), "widths"_a.noconvert(), "seconds"_a.noconvert(), "with_model"_a.noconvert().none(),
          "rest"_a, "speedup"_a, "speedup_alone"_a, "exponent"_a, "exponent_united"_a,
          "promised"_a.noconvert().none(), "fit"_a.noconvert().none(), "passes"_a, "must_pass"_a,
          "cannot_pass"_a, "trees"_a);
  nb::class_<Planner>(m, "StepPlanner")
      .def(nb::init<nb::object, nb::object>(), nb::kw_only(), "suffix_only"_a, "with_model"_a)
      .def("plan", &Planner::plan, "offsets"_a.noconvert(), "parents"_a.noconvert(),
           "estimates"_a.noconvert(), "rooms"_a.noconvert(), "context"_a, "numbers"_a)
      .def("foreseen", &Planner::foreseen, "columns"_a, "exponent"_a, "estimated"_a.noconvert(),
           "sizes"_a.noconvert());
  nb::class_<Step>(m, "DraftingStep")
      .def(nb::init<nb::object, nb::object, nb::object, std::size_t, std::size_t, std::int32_t,
                    const Buffer<std::int64_t>&, const Buffer<std::int32_t>&, const Buffer<std::int32_t>&,
                    const Buffer<std::uint8_t>&, const Buffer<std::uint8_t>&, const Buffer<std::int64_t>&,
                    const Buffer<std::int32_t>&, const Buffer<double>&, const Buffer<std::int64_t>&>(),
           nb::kw_only(), "engine"_a, "suffix_only"_a, "with_model"_a, "max_rows"_a, "max_width"_a,
           "max_drafted"_a, "trees"_a.noconvert(), "packed"_a.noconvert(), "num_nodes"_a.noconvert(),
           "first_sources"_a.noconvert(), "outcomes"_a.noconvert(), "ends"_a.noconvert(),
           "rooms"_a.noconvert(), "estimated"_a.noconvert(), "sizes"_a.noconvert())
      .def("prepare", &Step::prepare, nb::kw_only(), "written"_a, "rows"_a, "padding"_a.noconvert().none(),
           "max_tokens"_a, "width"_a, "unites"_a, "suffixes"_a, "numbers"_a)
      .def("run", &Step::run)
      .def("suffixes_followed", &Step::suffixes_followed, "table"_a.noconvert(), "estimated"_a.noconvert(),
           "sizes"_a.noconvert())
      .def_prop_ro("address", &Step::address)
      .def_prop_ro("next", &Step::next)
      .def_prop_ro("is_done", [](const Step& self) { return self.step().is_done(); })
      .def_prop_ro("error", [](const Step& self) { return self.step().error(); })
      .def_prop_ro("num_lost", [](const Step& self) { return self.step().num_lost(); })
      .def_prop_ro("context", [](const Step& self) { return self.step().context(); })
      .def_prop_ro("longest", [](const Step& self) { return self.step().longest(); })
      .def_prop_ro("expected", [](const Step& self) { return self.step().expected(); })
      .def_prop_ro("seconds",
                   [](const Step& self) { return static_cast<double>(self.step().nanoseconds()) * 1e-9; });
}

}  // namespace agentspec::bindings
