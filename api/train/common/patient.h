// Deadlines of groups whose members may arrive long after each other. Used by layouts and roles.
#pragma once
#include "ouro/ouro.hpp"

namespace ouro::train {

/// Sets `deadline` if the user chose one neither for the group nor for the context.
GroupOptions patient(const Context&, GroupOptions, Milliseconds deadline);

}  // namespace ouro::train
