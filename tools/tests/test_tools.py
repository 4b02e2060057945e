"""Tests of the scripts around the verification records: python3 -m unittest discover -s tools/tests"""
import json
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import case_results  # noqa: E402
import digest  # noqa: E402
import figures  # noqa: E402
import readme_tables  # noqa: E402
import record  # noqa: E402
import record_check  # noqa: E402
import records  # noqa: E402
import test_reports  # noqa: E402

GTEST_REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="0" disabled="1" errors="0" name="AllTests">
  <testsuite name="Forward">
    <testcase name="Tail" classname="Forward" status="run" result="completed"/>
    <testcase name="Pool" classname="Forward" status="run" result="completed"/>
    <testcase name="TwoDevices" classname="Forward" status="run" result="skipped">
      <skipped message="needs two GPUs&#x0A;"/>
    </testcase>
    <testcase name="DISABLED_Slow" classname="Forward" status="notrun" result="suppressed"/>
  </testsuite>
</testsuites>
"""
FAILED_REPORT = """<testsuite tests="2"><testcase name="a" classname="t"><failure message="x"/></testcase>
<testcase name="b" classname="t"><error message="y"/></testcase></testsuite>"""


class Folder(unittest.TestCase):
    """A temporary folder `self.root`."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path


class TestReports(Folder):
    def test_counts(self):
        counts = test_reports.count(self.write("gpu.xml", GTEST_REPORT))
        self.assertEqual((counts.passed, counts.failed), (2, 0))
        self.assertEqual(counts.skipped, {"gpu: Forward.TwoDevices": "needs two GPUs", "gpu: Forward.DISABLED_Slow": "disabled"})

    def test_failures_and_errors_fail(self):
        total = test_reports.count_all([self.write("a.xml", GTEST_REPORT), self.write("b.xml", FAILED_REPORT)])
        self.assertEqual((total.passed, total.failed, len(total.skipped)), (2, 2, 2))


class TestCaseResults(Folder):
    PAGE = ("| id | input | test | result | GPU suite |\n|---|---|---|---|---|\n| C01 | a | `C01_A` | old | same |\n| C02 | b | `S.C02_B` | | none |\n"
            "\n| id | where |\n|---|---|\n| C01 | there |\n")
    SOURCES = {Path("tests/a_test.cpp"): "C01_A C02_B", Path("tests/cuda/a_test.cpp"): "C01_A"}

    def report(self, build, **outcomes):
        cases = "".join(f'<testcase name="{name}">{"<failure/>" if outcome == "failed" else ""}</testcase>' for name, outcome in outcomes.items())
        return self.write(f"{build}.xml", f"<testsuite>{cases}</testsuite>")

    def test_a_cell_says_in_which_builds(self):
        release = self.report("release", **{"Cases.C01_A": "passed", "Large.C01_B": "passed", "XC02_B": "passed"})
        results = case_results.results_of([release, self.report("asan", **{"Cases.C01_A": "passed"})])
        self.assertEqual(results, {"C01": "passed: release, asan"})
        filled = case_results.fill(self.PAGE, results)
        self.assertIn("| C01 | a | `C01_A` | passed: release, asan | same |\n| C02 | b | `S.C02_B` | – | none |\n", filled)
        self.assertTrue(filled.endswith("| C01 | there |\n"))
        self.assertEqual(case_results.fill(filled, results), filled)

    def test_a_failure_shows(self):
        release = self.report("release", **{"Cases.C01_A": "passed", "Cases.C01_B": "failed"})
        self.assertEqual(case_results.results_of([release]), {"C01": "failed: release; passed: release"})

    def test_names_that_no_test_has(self):
        self.assertEqual(case_results.unknown_names(self.PAGE, self.SOURCES), [])
        self.assertEqual(case_results.unknown_names(self.PAGE.replace("C02_B", "C02_Gone"), self.SOURCES), ["C02_Gone"])
        self.assertEqual(case_results.unknown_names(self.PAGE + "`Suite.Gone`", self.SOURCES), ["Gone"])
        self.assertEqual(case_results.unknown_names(self.PAGE.replace("none", "same"), self.SOURCES), ["C02_ in tests/cuda"])


class TestDigest(Folder):
    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", "project(x)")
        self.write("dependencies.txt", "# comment\ndebian libx 1\ndebian-check tool 1\ntoolkit cuda 13.0\n")
        for name in ("cmake/a.cmake", "include/x.h", "src/a.cpp"):
            self.write(name, "content")
        self.before = digest.digest(self.root)

    def test_what_is_compiled_in_changes_it(self):
        for name in ("CMakeLists.txt", "cmake/a.cmake", "include/x.h", "src/a.cpp", "src/new.cu", "dependencies.txt"):
            with self.subTest(name):
                path = self.root / name
                old = path.read_text() if path.exists() else None
                self.write(name, (old or "").replace("libx 1", "libx 2") + "\n")
                self.assertNotEqual(digest.digest(self.root), self.before)
                path.write_text(old) if old is not None else path.unlink()
        self.assertEqual(digest.digest(self.root), self.before)

    def test_a_moved_file_changes_it(self):
        (self.root / "src/a.cpp").rename(self.root / "src/b.cpp")
        self.assertNotEqual(digest.digest(self.root), self.before)

    def test_tools_and_other_folders_do_not(self):
        self.write("dependencies.txt", "debian libx 1\ndebian-check tool 2\ntoolkit cuda 13.0\n")
        self.write("docs/a.md", "words")
        self.assertEqual(digest.digest(self.root), self.before)


class TestRecord(Folder):
    def setUp(self):
        super().setUp()
        self.write("info.json", {"build": {"source_digest": "d1", "cuda": "13.0"}})
        self.write("device.json", {"device": "NVIDIA H200", "driver": "580.1", "date": "2026-12-01"})
        self.write("tests/gpu.xml", GTEST_REPORT)
        for tool in ("memcheck", "synccheck", "initcheck"):
            self.write(f"sanitizer/{tool}.log", "========= ERROR SUMMARY: 0 errors\n")
        self.write("sanitizer/racecheck.log", "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n")
        self.row = {"name": "forward/F1", "path": "fused", "output": 4e-3, "state": 2.8e-3}
        self.write("accuracy/a.json", {"accuracy": [self.row]})
        self.benchmark = {"name": "forward/H96/fixed8192/random", "path": "fused", "ms": 0.3, "floor_ms": 0.24, "peers_ms": {"fla": 2.6}}
        self.write("benchmarks/b.json", {"copy_tb_s": 4.3, "versions": {"torch": "2.11"}, "benchmarks": [self.benchmark]})

    def refused(self, words):
        with self.assertRaisesRegex(record.RecordError, words):
            record.merge(self.root, "d1")

    def test_merges_everything(self):
        merged = record.merge(self.root, "d1")
        self.assertEqual(merged["tests"]["passed"], 2)
        self.assertEqual(merged["tests"]["skipped"], 2)
        self.assertEqual(merged["sanitizer"], {"memcheck": 0, "racecheck": 0, "synccheck": 0, "initcheck": 0})
        self.assertEqual((merged["source_digest"], merged["device"], merged["cuda"], merged["copy_tb_s"]), ("d1", "NVIDIA H200", "13.0", 4.3))
        self.assertEqual(merged["versions"], {"torch": "2.11"})
        self.assertEqual(merged["accuracy"], [self.row])
        self.assertEqual(merged["benchmarks"], [self.benchmark])

    def test_other_sources(self):
        self.write("info.json", {"build": {"source_digest": "d0", "cuda": "13.0"}})
        self.refused("built from d0")

    def test_missing_parts(self):
        for name in ("info.json", "device.json", "tests/gpu.xml", "sanitizer/initcheck.log", "accuracy/a.json", "benchmarks/b.json"):
            with self.subTest(name):
                content = (self.root / name).read_text()
                (self.root / name).unlink()
                self.refused("missing|no such file")
                self.write(name, content)

    def test_failed_test(self):
        self.write("tests/b.xml", FAILED_REPORT)
        self.refused("2 failed")

    def test_sanitizer_findings(self):
        self.write("sanitizer/racecheck.log", "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n")
        self.refused("'racecheck': 3")

    def test_unfinished_sanitizer_run(self):
        self.write("sanitizer/memcheck.log", "========= COMPUTE-SANITIZER\n")
        self.refused("did not finish")

    def test_incomplete_row(self):
        self.write("accuracy/a.json", {"accuracy": [{"name": "forward/F1", "path": "fused", "output": 1.0}]})
        self.refused("lacks state")

    def test_row_twice(self):
        self.write("accuracy/b.json", {"accuracy": [self.row]})
        self.refused("twice")

    def test_a_row_for_each_path(self):
        other = {**self.benchmark, "path": "cuda/two_kernel", "ms": 0.9}  # the name that `flashkda bench` gives it
        self.write("benchmarks/c.json", {"benchmarks": [other]})
        self.assertEqual(record.merge(self.root, "d1")["benchmarks"], [self.benchmark, {**other, "path": "two_kernel"}])
        self.write("benchmarks/d.json", {"benchmarks": [{**other, "path": "two_kernel"}]})
        self.refused("on path two_kernel is there twice")

    def test_paths_of_different_runs(self):
        for change in ({"floor_ms": 0.25}, {"peers_ms": {}}):
            with self.subTest(change):
                self.write("benchmarks/c.json", {"benchmarks": [{**self.benchmark, "path": "two_kernel", **change}]})
                self.refused("on path two_kernel, .* on path fused; accepted are paths of one run")

    def test_rows_of_several_files(self):
        shapes = [{"name": "shapes/0/N2/H8/T900", "path": path, "ms": ms, "floor_ms": 0.1} for path, ms in (("fused", 0.2), ("two_kernel", 0.3))]
        self.write("benchmarks/shapes.json", {"benchmarks": shapes})
        merged = record.merge(self.root, "d1")
        self.assertEqual(merged["benchmarks"], [self.benchmark, *({"peers_ms": {}, **row} for row in shapes)])
        self.write("benchmarks/shapes.json", {"benchmarks": [shapes[0], {**shapes[1], "floor_ms": 0.2}]})
        self.refused("accepted are paths of one run")
        self.write("benchmarks/shapes.json", {"benchmarks": [{"name": "shapes/0/N2/H8/T900", "path": "fused", "ms": 0.2}]})
        self.refused("lacks floor_ms")

    def test_the_text_has_a_row_a_line(self):
        merged = record.merge(self.root, "d1")
        text = record.text(merged)
        self.assertEqual(json.loads(text), merged)
        self.assertIn(f'  "accuracy": [\n    {json.dumps(self.row)}\n  ],\n', text)

    def test_copy_speed_twice(self):
        self.write("benchmarks/c.json", {"copy_tb_s": 4.2, "benchmarks": []})
        self.refused("copy_tb_s is in 2 files")


class TestRecordCheck(unittest.TestCase):
    def test_verdicts(self):
        self.assertTrue(record_check.verdict({"source_digest": "d"}, "d")[0])
        self.assertTrue(record_check.verdict({"source_digest": "old", "unverified": "no device"}, "d")[0])
        self.assertFalse(record_check.verdict({"source_digest": "old"}, "d")[0])
        self.assertFalse(record_check.verdict({"source_digest": "old", "unverified": ""}, "d")[0])


def benchmark(name, path, ms, floor_ms=0.24, **peers_ms):
    return {"name": name, "path": path, "ms": ms, "floor_ms": floor_ms, "peers_ms": peers_ms}


class TestReadmeTables(unittest.TestCase):
    TEXT = "# A\n<!-- table: benchmarks -->\nstale\n<!-- /table -->\nend\n"
    NAME = "forward/H96/fixed8192/random"
    RECORD = {
        "device": "NVIDIA H200", "cuda": "13.0", "driver": "580.1", "date": "2026-12-01",
        "tests": {"passed": 9, "failed": 0, "skipped": 1}, "sanitizer": {"memcheck": 0, "racecheck": 0},
        "accuracy": [{"name": "forward/F1", "path": "two_kernel", "output": 5e-3, "state": 3e-3, "fla_output": 4.1e-3},
                     {"name": "forward/F1", "path": "fused", "output": 4e-3, "state": 2.8e-3, "fla_output": 4.1e-3}],
        "benchmarks": [benchmark(NAME, "two_kernel", 0.9, fla=2.7, published=1.4), benchmark(NAME, "fused", 0.3, fla=2.7, published=1.4),
                       benchmark("host/python", "two_kernel", 0.011, 0.0), benchmark("host/python", "fused", 0.0082, 0.0)],
    }

    def record_with(self, **sections):
        return {**self.RECORD, **sections}

    def test_no_record(self):
        self.assertEqual(readme_tables.render(self.TEXT, []), "# A\n<!-- table: benchmarks -->\nno record yet\n<!-- /table -->\nend\n")

    def test_a_case_is_one_line_with_both_paths(self):
        text = readme_tables.render(self.TEXT, [self.RECORD])
        self.assertIn("| GPU | case | fused | two kernels | floor | fla | published |\n", text)
        self.assertIn(f"| NVIDIA H200 | {self.NAME} | 0.300 (1.25×) | 0.900 (3.75×) | 0.240 | 2.70 (9.00×, 3.00×) | 1.40 (4.67×, 1.56×) |\n",
                      text)
        self.assertNotIn("host/", text)
        self.assertEqual(readme_tables.render(text, [self.RECORD]), text)

    def test_what_was_not_measured_is_missing(self):
        row = {"name": self.NAME, "path": "two_kernel", "ms": 12.34, "floor_ms": 0.0}
        self.assertIn(f"| {self.NAME} | – | 12.3 (–) | – | – | – |\n", readme_tables.benchmarks([self.record_with(benchmarks=[row])]))
        row = benchmark(self.NAME, "two_kernel", 0.5, published=1.0)
        self.assertIn(f"| {self.NAME} | – | 0.500 (2.08×) | 0.240 | – | 1.00 (–, 2.00×) |\n",
                      readme_tables.benchmarks([self.record_with(benchmarks=[row])]))

    def test_a_path_and_a_peer_that_are_new_get_columns(self):
        text = readme_tables.benchmarks([self.record_with(benchmarks=[benchmark("decode/H12/B64/fp32", "step", 0.02, new=0.04)])])
        self.assertIn("| fused | two kernels | step | floor | fla | published | new |\n", text)
        self.assertIn("| – | – | 0.0200 (0.08×) | 0.240 | – | – | 0.0400 (–, –, 2.00×) |\n", text)

    def test_shapes(self):
        rows = [benchmark(f"shapes/{name}", path, ms) for name, fused_ms, two_ms in (("0/N1/H2/T30", 0.48, 0.96), ("1/N2/H8/T900", 0.6, 0.54),
                                                                                    ("2/N3/H1/T0", 0.24, 0.72))
                for path, ms in (("fused", fused_ms), ("two_kernel", two_ms))]
        text = readme_tables.shapes([self.record_with(benchmarks=rows)])
        self.assertIn("| fused, median | fused, worst | two kernels, median | two kernels, worst | least two kernels / fused | fused slower |\n", text)
        self.assertIn("| NVIDIA H200 | 3 | 2.00× | 2.50× (N2/H8/T900) | 3.00× | 4.00× (N1/H2/T30) | 0.90× | 1 of 3 |\n", text)
        one = readme_tables.shapes([self.record_with(benchmarks=rows[1:2])])
        self.assertIn("| NVIDIA H200 | 1 | – | – | 4.00× | 4.00× (N1/H2/T30) | – | – |\n", one)
        self.assertEqual(readme_tables.shapes([self.RECORD]).count("\n"), 2)

    def test_calls(self):
        rows = [benchmark(f"calls/H12/fixed8192/{way}", "fused", ms) for way, ms in (("plain", 0.2), ("no A_log", 0.206))]
        rows += [benchmark("calls/H12/fixed8192/plain", "two_kernel", 0.4), benchmark("calls/H96/fixed8192/no A_log", "fused", 0.5)]
        text = readme_tables.calls([self.record_with(benchmarks=rows)])
        self.assertIn("| GPU | call | fused | two kernels |\n", text)
        self.assertIn("| NVIDIA H200 | H12/fixed8192/plain | 0.200 (1.00×) | 0.400 (1.00×) |\n", text)
        self.assertIn("| NVIDIA H200 | H12/fixed8192/no A_log | 0.206 (1.03×) | – |\n", text)
        self.assertIn("| H96/fixed8192/no A_log | 0.500 (–) | – |\n", text)

    def test_rows_with_a_table_of_their_own_are_in_no_other(self):
        names = ["host/cpp", "shapes/0/N1/H2/T30", "calls/H12/fixed8192/plain"]
        text = readme_tables.benchmarks([self.record_with(benchmarks=[benchmark(name, "fused", 0.1) for name in names])])
        self.assertEqual(text.count("\n"), 2)

    def test_host(self):
        self.assertEqual(readme_tables.host([self.RECORD]), "| GPU | call from | fused | two kernels |\n| --- | --- | --- | --- |\n"
                                                            "| NVIDIA H200 | python | 8.2 | 11.0 |\n")
        one = self.record_with(benchmarks=[benchmark("host/cpp", "two_kernel", 0.0061, 0.0)])
        self.assertIn("| cpp | – | 6.1 |\n", readme_tables.host([one]))
        self.assertEqual(readme_tables.host([self.record_with(benchmarks=[])]).count("\n"), 2)

    def test_accuracy(self):
        text = readme_tables.accuracy([self.RECORD])
        self.assertIn("| fused output | fused state | two kernels output | two kernels state | fla output | fla state |\n", text)
        self.assertIn("| forward/F1 | 4.0e-03 | 2.8e-03 | 5.0e-03 | 3.0e-03 | 4.1e-03 | – |\n", text)

    def test_accuracy_of_one_path_without_peers(self):
        row = {"name": "forward/F1", "path": "two_kernel", "output": 5e-3, "state": 3e-3}
        self.assertIn("| forward/F1 | – | – | 5.0e-03 | 3.0e-03 | – | – |\n", readme_tables.accuracy([self.record_with(accuracy=[row])]))

    def test_unverified_shows(self):
        self.assertIn("unverified: moved", readme_tables.devices([self.record_with(unverified="moved")]))

    def test_unknown_table(self):
        with self.assertRaisesRegex(ValueError, "accepted is"):
            readme_tables.render("<!-- table: nothing -->\n<!-- /table -->", [])

    def test_no_markers(self):
        with self.assertRaisesRegex(ValueError, "no table markers"):
            readme_tables.render("words", [])


class TestFigures(unittest.TestCase):
    SVG = "{http://www.w3.org/2000/svg}"

    def record(self, paths=("two_kernel", "fused")):
        rows = [benchmark(f"forward/H{H}/fixed{T}/random", path, T * 1e-4, T * 5e-5, **{"fla <x>": T * 3e-4})
                for H, T in ((12, 8192), (12, 2048), (96, 8192)) for path in paths]
        errors = [{"name": f"forward/{family}", "path": path, "output": 4e-3, "state": 2.8e-3, "fla_output": 5e-3}
                  for family in ("F1", "F7") for path in paths]
        return {"device": "NVIDIA H200", "benchmarks": rows, "accuracy": errors}

    def labels(self, svg):
        return [text.text for text in ElementTree.fromstring(svg).iter(f"{self.SVG}text") if text.get("text-anchor") == "start"][1:]

    def test_every_line_is_drawn_and_the_text_is_the_same_each_time(self):
        drawn = figures.draw(self.record())
        self.assertEqual(sorted(drawn), ["nvidia-h200-accuracy.svg", "nvidia-h200-heads.svg", "nvidia-h200-tokens.svg"])
        times = ["FlashKDA, fused", "FlashKDA, two kernels", "fla <x>", "floor (memory)"]
        errors = ["fused, output", "fused, state", "two kernels, output", "two kernels, state", "fla, output"]
        for name, labels in (("tokens", times), ("heads", times), ("accuracy", errors)):
            text = drawn[f"nvidia-h200-{name}.svg"]
            self.assertEqual(self.labels(text), labels)
            self.assertEqual(text.count("<polyline"), len(labels))
        self.assertEqual(drawn, figures.draw(self.record()))

    def test_a_path_has_its_colour_whatever_else_is_there(self):
        def colours(drawn):
            lines = ElementTree.fromstring(drawn["nvidia-h200-tokens.svg"]).iter(f"{self.SVG}polyline")
            return dict(zip(self.labels(drawn["nvidia-h200-tokens.svg"]), (line.get("stroke") for line in lines), strict=True))

        both, one = colours(figures.draw(self.record())), colours(figures.draw(self.record(["two_kernel"])))
        self.assertEqual(both.keys() - one.keys(), {"FlashKDA, fused"})
        self.assertEqual(len(set(both.values())), len(both))
        self.assertEqual(one, {label: both[label] for label in one})

    def test_rows_without_floor_and_peers(self):
        rows = [{"name": f"forward/H12/fixed{T}/random", "path": "fused", "ms": T * 1e-4, "floor_ms": 0.0} for T in (2048, 8192)]
        drawn = figures.draw({"device": "NVIDIA H200", "benchmarks": rows, "accuracy": []})
        self.assertEqual(self.labels(drawn["nvidia-h200-tokens.svg"]), ["FlashKDA, fused"])

    def test_higher_is_slower(self):
        root = ElementTree.fromstring(figures.draw(self.record())["nvidia-h200-tokens.svg"])
        ours = root.find(f"{self.SVG}polyline").get("points").split()
        (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in ours)
        self.assertLess(x0, x1)
        self.assertGreater(y0, y1)

    def test_too_few_points_make_no_picture(self):
        self.assertEqual(figures.draw({"device": "x", "benchmarks": [], "accuracy": []}), {})


class TestRecords(unittest.TestCase):
    def test_file_name(self):
        self.assertEqual(records.file_name("NVIDIA H200"), "nvidia-h200.json")


if __name__ == "__main__":
    unittest.main()
