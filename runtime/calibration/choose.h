// What follows from a record. Used where copies and algorithms are chosen, and by ouro-info.
#pragma once
#include "runtime/calibration/record.h"

namespace ouro::rt {

/// The kind of each size class that takes writer and reader together the least time. What is built in stays
/// where figures are missing, and where another kind saves less than a fifth: such a figure may be noise.
kernels::CopyKinds copy_kinds_by(const Calibration&);

}  // namespace ouro::rt
