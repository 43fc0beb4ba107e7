#pragma once

#include "bindings/arrays.h"
#include "engine.h"

// The functions that the files of the Python module share.
namespace agentspec::bindings {

// Binds the arithmetic of the goodput controller (goodput.cc).
void bind_goodput(nb::module_& m);
// Binds deletion, files and snapshots (store.cc).
void bind_store(nb::module_& m, nb::class_<Engine>& engine);
// Binds a step's native part (step.cc).
void bind_step(nb::module_& m);
// Binds the union of suffix drafts and the draft model's trees (union.cc).
void bind_union(nb::module_& m);

}  // namespace agentspec::bindings
