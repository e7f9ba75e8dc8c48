// The standard library and the test library, precompiled for the check that each header compiles alone. Used
// by tests/checks; no file includes it.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/core/precompiled.h"
