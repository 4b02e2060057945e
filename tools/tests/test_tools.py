"""Tests of the scripts around the verification records: python3 -m unittest discover -s tools/tests"""
import json
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
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
        self.write("benchmarks/b.json", {"copy_tb_s": 4.3, "benchmarks": [self.benchmark]})

    def refused(self, words):
        with self.assertRaisesRegex(record.RecordError, words):
            record.merge(self.root, "d1")

    def test_merges_everything(self):
        merged = record.merge(self.root, "d1")
        self.assertEqual(merged["tests"]["passed"], 2)
        self.assertEqual(merged["tests"]["skipped"], 2)
        self.assertEqual(merged["sanitizer"], {"memcheck": 0, "racecheck": 0, "synccheck": 0, "initcheck": 0})
        self.assertEqual((merged["source_digest"], merged["device"], merged["cuda"], merged["copy_tb_s"]), ("d1", "NVIDIA H200", "13.0", 4.3))
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

    def test_copy_speed_twice(self):
        self.write("benchmarks/c.json", {"copy_tb_s": 4.2, "benchmarks": []})
        self.refused("copy_tb_s is in 2 files")


class TestRecordCheck(unittest.TestCase):
    def test_verdicts(self):
        self.assertTrue(record_check.verdict({"source_digest": "d"}, "d")[0])
        self.assertTrue(record_check.verdict({"source_digest": "old", "unverified": "no device"}, "d")[0])
        self.assertFalse(record_check.verdict({"source_digest": "old"}, "d")[0])
        self.assertFalse(record_check.verdict({"source_digest": "old", "unverified": ""}, "d")[0])


class TestReadmeTables(unittest.TestCase):
    TEXT = "# A\n<!-- table: benchmarks -->\nstale\n<!-- /table -->\nend\n"
    RECORD = {"device": "NVIDIA H200", "cuda": "13.0", "driver": "580.1", "date": "2026-12-01",
              "tests": {"passed": 9, "failed": 0, "skipped": 1}, "sanitizer": {"memcheck": 0, "racecheck": 0},
              "accuracy": [{"name": "forward/F1", "path": "fused", "output": 4e-3, "state": 2.8e-3, "fla_output": 4.1e-3}],
              "benchmarks": [{"name": "forward/H96/fixed8192/random", "path": "fused", "ms": 0.3, "floor_ms": 0.24, "peers_ms": {"fla": 2.61}}]}

    def test_no_record(self):
        self.assertEqual(readme_tables.render(self.TEXT, []), "# A\n<!-- table: benchmarks -->\nno record yet\n<!-- /table -->\nend\n")

    def test_rows(self):
        text = readme_tables.render(self.TEXT, [self.RECORD])
        self.assertIn("| NVIDIA H200 | forward/H96/fixed8192/random | fused | 0.3 | 1.25 | fla 8.70× |\n", text)
        self.assertEqual(readme_tables.render(text, [self.RECORD]), text)

    def test_accuracy_without_a_peer_figure(self):
        self.assertIn("| 4.0e-03 | 2.8e-03 | 4.1e-03 |  |", readme_tables.accuracy([self.RECORD]))

    def test_unverified_shows(self):
        self.assertIn("unverified: moved", readme_tables.devices([{**self.RECORD, "unverified": "moved"}]))

    def test_unknown_table(self):
        with self.assertRaisesRegex(ValueError, "accepted is"):
            readme_tables.render("<!-- table: nothing -->\n<!-- /table -->", [])

    def test_no_markers(self):
        with self.assertRaisesRegex(ValueError, "no table markers"):
            readme_tables.render("words", [])


class TestFigures(unittest.TestCase):
    def record(self):
        rows = [{"name": f"forward/H{H}/fixed{T}/random", "path": "fused", "ms": T * 1e-4, "floor_ms": T * 5e-5, "peers_ms": {"fla <x>": T * 3e-4}}
                for H, T in ((12, 2048), (12, 8192), (96, 8192))]
        errors = [{"name": f"forward/{family}", "path": "fused", "output": 4e-3, "state": 2.8e-3} for family in ("F1", "F7")]
        return {"device": "NVIDIA H200", "benchmarks": rows, "accuracy": errors}

    def test_every_series_is_drawn_and_the_text_is_the_same_each_time(self):
        drawn = figures.draw(self.record())
        self.assertEqual(sorted(drawn), ["nvidia-h200-accuracy.svg", "nvidia-h200-heads.svg", "nvidia-h200-tokens.svg"])
        for name, lines in (("tokens", 3), ("heads", 3), ("accuracy", 2)):
            text = drawn[f"nvidia-h200-{name}.svg"]
            self.assertEqual(text.count("<polyline"), lines)
            ElementTree.fromstring(text)
        self.assertEqual(drawn, figures.draw(self.record()))

    def test_higher_is_slower(self):
        root = ElementTree.fromstring(figures.draw(self.record())["nvidia-h200-tokens.svg"])
        ours = root.find("{http://www.w3.org/2000/svg}polyline").get("points").split()
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
