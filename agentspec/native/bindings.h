#pragma once

#include "arrays.h"
#include "engine.h"

// What the files of the Python module share.
namespace agentspec::bindings {

// Deletion, files, snapshots: what engine_store.cc does.
void bind_store(nb::module_& m, nb::class_<Engine>& engine);
// Trees of suffix drafts and draft models put together: what tree_union.cc does.
void bind_union(nb::module_& m);

}  // namespace agentspec::bindings
