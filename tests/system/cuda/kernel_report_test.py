# How many loads kernel-report counts as in flight, on instructions as the disassembler prints them.
import importlib.machinery
import importlib.util
import pathlib
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[3] / "tools" / "kernel-report"
loader = importlib.machinery.SourceFileLoader("kernel_report", str(TOOL))
report = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(report)


def flight(*lines):
    return report.in_flight([(16 * i, line) for i, line in enumerate(lines)])


class InFlight(unittest.TestCase):
    def test_loads_until_the_first_use(self):
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "LD.E.128 R12, desc[UR4][R4.64+0x10]",
                                "FADD R1, R1, R9", "LDG.E.128 R16, desc[UR4][R2.64]", "EXIT"), 2)

    def test_narrow_loads_and_those_of_shared_memory_do_not_count(self):
        self.assertEqual(flight("LDG.E.64 R8, desc[UR4][R2.64]", "LDS.128 R12, [R3]", "EXIT"), 0)

    def test_a_choice_loads_into_the_same_registers(self):
        self.assertEqual(flight("@P4 LDG.E.128 R8, desc[UR4][R2.64]", "@!P4 LDG.E.128 R8, desc[UR4][R4.64]", "EXIT"), 1)

    def test_an_address_that_was_loaded_is_used(self):
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "LDG.E.128 R12, desc[UR4][R8.64]", "EXIT"), 1)

    def test_the_first_register_of_a_store_stands_for_four(self):
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "STG.E.128 desc[UR4][R4.64], R8",
                                "LDG.E.128 R12, desc[UR4][R2.64]", "EXIT"), 1)

    def test_branches_are_followed(self):
        # The loads of both sides of a branch are in flight where they meet, the other way round on the way back.
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "@P0 BRA 0x40", "MOV R1, R9", "BRA 0x50",
                                "LDG.E.128 R12, desc[UR4][R2.64]", "LDG.E.128 R16, desc[UR4][R2.64]", "EXIT"), 3)
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "@!P0 BRA P1, 0x0", "EXIT"), 1)

    def test_what_follows_an_exit_is_another_way(self):
        self.assertEqual(flight("LDG.E.128 R8, desc[UR4][R2.64]", "EXIT", "LDG.E.128 R12, desc[UR4][R2.64]", "EXIT"), 1)


if __name__ == "__main__":
    unittest.main()
