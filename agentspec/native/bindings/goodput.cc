#include "goodput.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>

#include "bindings/bindings.h"

using namespace nanobind::literals;

// These calls keep the GIL. They take microseconds on a server's critical path, and a thread that took the
// GIL meanwhile could hold it for Python's switch interval, 5 ms.
namespace agentspec::bindings {
namespace {

nb::tuple plan(Goodput& goodput, const Int32Array& offsets, const Int32Array& parents,
               const FloatArray& estimates, const Vector<std::int64_t>& widths, double context, double rest,
               const Vector<double>& seconds, double exponent, const Buffer<double>& estimated,
               const Buffer<std::int64_t>& sizes, bool ahead) {
  const GoodputPlan plan = goodput.plan({.offsets = view(offsets),
                                         .parents = view(parents),
                                         .estimates = view(estimates),
                                         .widths = view(widths),
                                         .seconds = view(seconds),
                                         .context = context,
                                         .rest = rest,
                                         .exponent = exponent,
                                         .ahead = ahead},
                                        {view(estimated), view(sizes)});
  return nb::make_tuple(plan.width, plan.expected_tokens, plan.seconds, static_cast<int>(plan.reason));
}

}  // namespace

void bind_goodput(nb::module_& m) {
  nb::enum_<Objective>(m, "Objective")
      .value("AHEAD", Objective::kAhead)
      .value("RUN", Objective::kRun)
      .value("STEP", Objective::kStep);
  nb::class_<Goodput>(m, "Goodput")
      .def(
          "__init__",
          [](Goodput* self, Objective objective, double margin, std::int64_t patience, double probe_share,
             bool knows_costs, double drafter_alpha, double drafter_gamma, double drafter_delta) {
            new (self) Goodput({.objective = objective,
                                .margin = margin,
                                .patience = patience,
                                .probe_share = probe_share,
                                .knows_costs = knows_costs,
                                .drafter = {drafter_alpha, drafter_gamma, drafter_delta}});
          },
          nb::kw_only(), "objective"_a, "margin"_a, "patience"_a, "probe_share"_a, "knows_costs"_a,
          "drafter_alpha"_a, "drafter_gamma"_a, "drafter_delta"_a)
      .def("plan", &plan, "offsets"_a.noconvert(), "parents"_a.noconvert(), "estimates"_a.noconvert(),
           "widths"_a.noconvert(), "context"_a, "rest"_a, "seconds"_a.noconvert(), "exponent"_a,
           "estimated"_a.noconvert(), "sizes"_a.noconvert(), nb::kw_only(), "ahead"_a = false)
      .def("probe_succeeded", &Goodput::probe_succeeded)
      .def("renew_probes", &Goodput::renew_probes)
      .def("width", &Goodput::width)
      .def("speedup", &Goodput::speedup)
      .def("num_probes", &Goodput::num_probes);
}

}  // namespace agentspec::bindings
