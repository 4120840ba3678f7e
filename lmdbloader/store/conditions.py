"""Conditions on the columns of a dataset, written as text: parsed, never evaluated, to an Arrow expression."""

from __future__ import annotations

import ast
import functools
import operator
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from lmdbloader.base.option_names import shown
from lmdbloader.errors import OptionError
from lmdbloader.store.reader import Reader
from lmdbloader.store.rows import Rows, as_array

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]
_COMPARED = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_JOINED = {ast.And: operator.and_, ast.Or: operator.or_, ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_EXPECTED = (
    "expected comparisons of columns, such as \"label == 3 and not (name in ('a', 'b') or score is null)\"; any other "
    "condition can choose samples by their numbers"
)
_MOST_CHARACTERS = 100_000
# Columns about the payloads, which `table_of` leaves out.
_HIDDEN_COLUMNS = (".offset", ".stored_nbytes", ".raw_nbytes", ".checksum", ".codec")


def column_names(reader: Reader) -> list[str]:
    """Return the columns of `table_of`."""
    long = {f"{name}.offset": name for name in reader.long_texts}
    names = (long.get(name, name) for name in reader.index.column_names)
    return [name for name in names if not name.endswith(_HIDDEN_COLUMNS)]


def table_of(reader: Reader, rows: Rows, names: Sequence[str] | None = None) -> pa.Table:
    """Return the small columns of an index, one row per sample: labels, text, source, patch position, image sizes.

    Texts that the index does not have are read from data.mdb.

    Args:
        reader: Of the dataset.
        rows: Of the index, a range or (n,).
        names: Of the columns; all by default.

    Raises:
        CorruptError: Such a text is damaged.
    """
    import pyarrow as pa

    names = column_names(reader) if names is None else names
    short = [name for name in names if name not in reader.long_texts]
    # A table without columns forgets how many rows it has.
    table = pa.Table.from_batches([reader.index.batch]).select(short or reader.index.column_names[:1])
    if isinstance(rows, range) and rows.step == 1:
        table = table.slice(rows.start, len(rows))
    else:
        table = table.take(pa.array(as_array(rows)))
    for place, name in enumerate(names):
        if name in reader.long_texts:
            table = table.add_column(place, name, pa.array(reader.read_texts(name, as_array(rows)), pa.large_string()))
    return table.select(names)


def matching(reader: Reader, rows: Rows, condition: str) -> I64:
    """Return the positions (m,), ascending, of the samples whose row of `table_of` matches a condition.

    Args:
        reader: Of the dataset.
        rows: Of the index, a range or (n,).
        condition: See `parse_condition`.

    Raises:
        OptionError: It is not a condition, or does not fit the table.
    """
    import pyarrow as pa

    if not isinstance(condition, str):
        raise OptionError(f'where({shown(condition)}): expected a text, such as "label == 3"')
    names, long, short = column_names(reader), reader.long_texts, reader.index.batch
    schema = pa.schema([pa.field(name, pa.large_string()) if name in long else short.field(name) for name in names])
    parsed = parse_condition(condition, schema, reader.manifest.classes)
    text = unicodedata.normalize("NFKC", condition)  # as Python reads names
    table = table_of(reader, rows, [name for name in names if name not in long or name in text])
    numbered = table.append_column("sample number", pa.array(np.arange(table.num_rows)))
    numbers: I64 = numbered.filter(parsed).column("sample number").to_numpy()
    return numbers


def parse_condition(text: str, schema: pa.Schema, classes: Mapping[str, Sequence[str]]) -> pc.Expression:
    """Return the Arrow expression of a condition.

    A text that is compared with a column of labels is the name of a class. A number that is NaN is null.

    Args:
        text: In Python's syntax, with column names such as `label` and `image.height`.
        schema: Of the table.
        classes: Class names by column.

    Raises:
        OptionError: It is not a condition, names a column that is not there, or compares numbers with texts.
    """
    condition = _Condition(text, schema, classes)
    try:
        if len(text) > _MOST_CHARACTERS:
            condition.refuse(f"has {len(text)} characters; expected at most {_MOST_CHARACTERS}")
        return condition.boolean(ast.parse(" ".join(text.split("\n")).strip(), mode="eval").body)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        condition.refuse(f"{getattr(error, 'msg', error)}; {_EXPECTED}")
    except (RecursionError, MemoryError):
        condition.refuse("is nested too deeply")


class _Condition:
    """The condition that is being parsed, for columns of one table."""

    def __init__(self, text: str, schema: pa.Schema, classes: Mapping[str, Sequence[str]]) -> None:
        self._text, self._schema, self._classes = text, schema, classes

    def refuse(self, reason: str) -> NoReturn:
        raise OptionError(f"where({shown(self._text)}): {reason}")

    def boolean(self, node: ast.expr) -> pc.Expression:
        """Return the expression of a part that is true or false."""
        import pyarrow.compute as pc

        match node:
            case ast.BoolOp():
                return functools.reduce(_JOINED[type(node.op)], map(self.boolean, node.values))
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return _JOINED[type(node.op)](self.boolean(node.left), self.boolean(node.right))
            case ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return ~self.boolean(node.operand)
            case ast.Compare():
                sides = [node.left, *node.comparators]
                pairs = zip(sides, node.ops, sides[1:], strict=False)
                return functools.reduce(operator.and_, (self._compare(*pair) for pair in pairs))
            case ast.Constant(value=bool()):
                return pc.scalar(node.value)
        self.refuse(f"cannot read {ast.unparse(node)!s:.80}; {_EXPECTED}")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> pc.Expression:
        import pyarrow.compute as pc

        if isinstance(op, ast.NotIn):
            return ~self._contained(left, right)
        if isinstance(op, ast.In):
            return self._contained(left, right)
        if self._is_null(left) or self._is_null(right):
            if not isinstance(op, ast.Is | ast.IsNot) or not self._is_null(right):
                self.refuse("nothing is equal to null: write `is null` or `is not null`")
            found = pc.field(self._column(left)).is_null(nan_is_null=True)
            return found if isinstance(op, ast.Is) else ~found
        names = [self._column(side) if isinstance(side, ast.Name | ast.Attribute) else None for side in (left, right)]
        name = names[0] or names[1]
        if name is None or type(op) not in _COMPARED:
            self.refuse(f"cannot read {ast.unparse(ast.Compare(left, [op], [right]))!s:.80}; {_EXPECTED}")
        if names[0] and names[1] and (self._kind(names[0]) == "text") != (self._kind(names[1]) == "text"):
            self.refuse(f"{names[0]} holds {self._kind(names[0])}s and {names[1]} {self._kind(names[1])}s")
        sides = [
            self._field(column) if column else pc.scalar(self._literal(name, side))
            for column, side in zip(names, (left, right), strict=True)
        ]
        return _COMPARED[type(op)](*sides)

    def _contained(self, left: ast.expr, right: ast.expr) -> pc.Expression:
        """Return the expression of `column in (...)`, or of `'part' in column`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            name = self._column(left)
            values = [self._literal(name, side) for side in right.elts]
            # As in Python, a whole number equals a float only if it does exactly.
            if self._kind(name) == "whole number":
                values = [int(v) for v in values if v == int(v) and -(2**63) <= v < 2**63]
            elif self._kind(name) == "number":
                values = [float(v) for v in values if float(v) == v]
            return self._field(name).isin(pa.array(values, self._type(name))) if values else pc.scalar(False)
        if isinstance(right, ast.Constant) and isinstance(right.value, str):
            self.refuse(f"`in` needs a list after it: write `in [{ast.unparse(right)}]`")
        name = self._column(right)
        part = left.value if isinstance(left, ast.Constant) else None
        if self._kind(name) != "text" or not isinstance(part, str):
            self.refuse("`in` needs a list after it, as in `label in (1, 2)`, or a text before it, as in `'a' in name`")
        return pc.match_substring(self._field(name), part)

    def _field(self, name: str) -> pc.Expression:
        """Return a column, as numbers or texts of one type."""
        import pyarrow.compute as pc

        return pc.field(name).cast(self._type(name))

    def _type(self, name: str) -> pa.DataType:
        """Return the Arrow type in which a column is compared."""
        import pyarrow as pa

        return {"text": pa.large_string(), "whole number": pa.int64(), "number": pa.float64()}[self._kind(name)]

    def _kind(self, name: str) -> str:
        kind = str(self._schema.field(name).type)
        return "text" if "string" in kind else "whole number" if "int" in kind or kind == "bool" else "number"

    def _is_null(self, node: ast.expr) -> bool:
        is_word = isinstance(node, ast.Name) and node.id in ("null", "none") and node.id not in self._schema.names
        return is_word or (isinstance(node, ast.Constant) and node.value is None)

    def _column(self, node: ast.expr) -> str:
        """Return the name of a column, which may have a dot, such as image.height."""
        name = ast.unparse(node)
        if isinstance(node, ast.Name | ast.Attribute) and name in self._schema.names:
            return name
        if any(name in of_labels for of_labels in self._classes.values()):
            self.refuse(f"{name} is a class: write {name!r} in quotes")
        self.refuse(f"there is no column {name!r:.80}. The columns are {', '.join(self._schema.names)}")

    def _literal(self, column: str, node: ast.expr) -> Any:
        """Return a number or a text to compare a column with; of a class's name, its label."""
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            value = None
        kind, classes = self._kind(column), self._classes.get(column, ())
        if isinstance(value, str):
            if kind == "text":
                return value
            if value in classes:
                return classes.index(value)
            if classes:
                self.refuse(f"{column} has no class {value!r:.80}. Its classes are {shown(classes)}")
        elif isinstance(value, int | float) and kind != "text":
            if isinstance(value, float) or -(2**63) <= value < 2**63:
                return int(value) if isinstance(value, bool) else value
            self.refuse(f"{value} has more than 64 bits")
        self.refuse(f"{column} holds {kind}s, and {ast.unparse(node)!s:.80} is not one; {_EXPECTED}")
