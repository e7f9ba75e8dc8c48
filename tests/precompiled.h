// Headers that nearly every test includes, precompiled. Used by the build (tests/CMakeLists.txt); no file
// includes it.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ouro/ouro.hpp"
#include "runtime/core/precompiled.h"
