"""What scripts/readme.py writes into README and docs is up to date."""

from __future__ import annotations

from scripts import readme


def test_tables_and_drawing_are_those_of_the_result_files_and_the_code() -> None:
    def read(document: str) -> str:
        return (readme.ROOT / document).read_text()

    for document, name, file, make in readme.TABLES:
        assert readme.between(read(document), name) == readme.table(file, make), document
    assert readme.between(read("docs/troubleshooting.md"), "messages") == readme.messages()
    assert read("docs/demo.svg") == readme.drawing(readme.between(read("README.md"), "demo"))
