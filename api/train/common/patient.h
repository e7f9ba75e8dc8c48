// Groups whose members may come to meet long after each other. Used by layouts and roles.
#pragma once
#include "ouro/ouro.hpp"

namespace ouro::train {

/// `deadline` where the user chose none, neither for the group nor for the context.
GroupOptions patient(const Context&, GroupOptions, Milliseconds deadline);

}  // namespace ouro::train
