#pragma once

#include "bindings/arrays.h"
#include "engine.h"

// What the files of the Python module share.
namespace agentspec::bindings {

// The arithmetic of the goodput controller: what goodput.cc does.
void bind_goodput(nb::module_& m);
// Deletion, files, snapshots: what engine_store.cc does.
void bind_store(nb::module_& m, nb::class_<Engine>& engine);
// Trees of suffix drafts and draft models put together: what tree_union.cc does.
void bind_union(nb::module_& m);

}  // namespace agentspec::bindings
