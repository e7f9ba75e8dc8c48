// The standard library and that of the tests, compiled once for the check that each header compiles alone.
// Used by tests/checks; no file includes it.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/precompiled.h"
