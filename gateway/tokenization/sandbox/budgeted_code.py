"""Code of chat templates that pays for its work: the generator of jinja's Python code, with prices.

Nothing is computed while a template is compiled (jinja folds constants by default, of any size). A template
with a construct that has no price is rejected: no model's template was seen to need it, and workers make its
tokens as well.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators

MAX_SOURCE_CHARS: Final = 256 << 10
"""Characters of a template: more than ten times the longest that was seen."""
MAX_NODES: Final = 10_000
"""Nodes of a template's syntax tree; Python compiles as many in some 50 ms, and keeps its lock for that
time."""
SHORT_CHARS: Final = 256
CALL_UNITS: Final = 8
"""Units of a call of a macro, beside those of its body."""
DICT_ATTRIBUTES: Final = frozenset(dir(dict))
LOOP_ATTRIBUTES: Final = frozenset({"first", "last", "index", "index0", "previtem", "nextitem", "length"})
PAID_FILTERS: Final = frozenset({"tojson", "trim", "join", "replace"})
"""Filters that make a text, and have it paid."""
UNPRICED: Final[dict[type[nodes.Node], str]] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from … import",
    nodes.Extends: "extends",
    nodes.Block: "block",
    nodes.ScopedEvalContextModifier: "autoescape",
    nodes.OverlayScope: "a scope",
}
SHARING_NAMES: Final = {"varargs", "kwargs"}


class Unpriced(Exception):
    """The template has a construct that is not rendered here."""


def check_source(source: str) -> None:
    """Raise Unpriced for a template that is too long."""
    if len(source) > MAX_SOURCE_CHARS:
        raise Unpriced(f"it has more than {MAX_SOURCE_CHARS:,} characters")


def check_tree(tree: nodes.Template, filters: Iterable[str], removed: Iterable[str]) -> None:
    """Raise Unpriced for a template that is too large, or has a construct without a price. `removed` are
    jinja's filters that are not among `filters`."""
    for number, node in enumerate(_nodes(tree)):
        if number >= MAX_NODES:
            raise Unpriced(f"it has more than {MAX_NODES:,} nodes")
        if type(node) in UNPRICED:
            raise Unpriced(f"it uses {UNPRICED[type(node)]}, which is not rendered here")
        if getattr(node, "dyn_args", None) is not None or getattr(node, "dyn_kwargs", None) is not None:
            raise Unpriced("it calls with * or **, which is not rendered here")
        if isinstance(node, nodes.Filter) and node.name in removed and node.name not in filters:
            raise Unpriced(f"it uses the filter {node.name}, which is not rendered here")


def _nodes(tree: nodes.Node, inside: Callable[[nodes.Node], bool] = lambda node: True) -> list[nodes.Node]:
    """Nodes below one, without recursion; those below one that is not `inside` are left out."""
    found: list[nodes.Node] = []
    todo = [tree]
    while todo:
        for node in todo.pop().iter_child_nodes():
            found.append(node)
            if inside(node):
                todo.append(node)
    return found


def _own(node: nodes.Node) -> int:
    """Units of a node that runs once, without those of loops and macros in it."""
    below = _nodes(node, lambda each: not isinstance(each, nodes.For | nodes.Macro | nodes.CallBlock))
    return (
        1 + len(below) + sum(len(each.data) for each in below if isinstance(each, nodes.TemplateData)) // 32
    )


def _statement(code: str, near: nodes.Node) -> nodes.ExprStmt:
    """Statement in Python."""
    return nodes.ExprStmt(_expression(code), lineno=near.lineno)


def _expression(code: str) -> nodes.InternalName:
    made: nodes.InternalName = object.__new__(nodes.InternalName)
    nodes.Node.__init__(made, code)
    return made


def _is_const(node: nodes.Node, *types: type) -> bool:
    return isinstance(node, nodes.Const) and (not types or type(node.value) in types)


def _is_short(node: nodes.Node) -> bool:
    return _is_const(node) and (type(node.value) is not str or len(node.value) <= SHORT_CHARS)  # type: ignore[attr-defined]


def _has_text(node: nodes.Expr) -> bool:
    """True for a sum of which a term is a constant text."""
    while isinstance(node, nodes.Add):
        if _is_const(node.left, str) or _is_const(node.right, str):
            return True
        node = node.left
    return False


def _is_text(node: nodes.Expr) -> bool:
    """True for what is a text, not Markup, and is paid."""
    if isinstance(node, nodes.Filter):
        return node.name in PAID_FILTERS
    return isinstance(node, nodes.Concat) or (isinstance(node, nodes.Add) and _has_text(node))


def _is_namespace(node: nodes.Node) -> bool:
    """True for `set name = namespace(…)`."""
    if not (isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name)):
        return False
    made = node.node.node if isinstance(node.node, nodes.Call) else None
    return isinstance(made, nodes.Name) and made.name == "namespace"


class BudgetedCode(CodeGenerator):
    """Generator of code that charges a `RenderContext`."""

    _namespaces: Container[str] = ()

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802
        found = _nodes(node)
        names = {each.name for each in found if isinstance(each, nodes.Name)}
        self._namespaces = {each.target.name for each in found if _is_namespace(each)}  # type: ignore[attr-defined]
        lines = [f"context.left -= {_own(node)}", f"context.num_nodes = {len(found)}"]
        lines += ["context.multiply(1000)"] if names & SHARING_NAMES else []
        node.body[:0] = [_statement(line, node) for line in lines]
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("text = context.text")
        self.writeline("paid = context.paid")
        self.writeline("method = context.method")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        units = 2 + sum(map(_own, node.body)) + (_own(node.test) if node.test is not None else 0)
        if node.recursive:
            raise Unpriced("it uses a recursive loop, which is not rendered here")
        node.iter = nodes.Call(_expression("counted"), [node.iter, nodes.Const(units)], [], None, None)
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802
        self._charge(node, node.body)
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:  # noqa: N802
        self._charge(node, node.body)
        super().visit_CallBlock(node, frame)

    def _charge(self, node: nodes.Node, body: list[nodes.Node]) -> None:
        """Let each run of a body pay for its nodes."""
        units = sum(map(_own, body)) + CALL_UNITS
        body[:0] = [
            _statement(f"context.left -= {units}", node),
            _statement("if context.left < 0: context.refill()", node),
        ]

    # outputs -----------------------------------------------------------------------------------

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData | nodes.Const):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("(" if _is_text(node) else "text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")

    # expressions -------------------------------------------------------------------------------

    def _call(self, name: str, arguments: Iterable[nodes.Node], frame: Frame) -> None:
        self.write(name + "(")
        for each in arguments:
            self.visit(each, frame)
            self.write(", ")
        self.write(")")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        """Call: of a method in one step, and of code that is written here as it is."""
        if isinstance(node.node, nodes.InternalName):
            self._call(f"context.{node.node.name}", node.args, frame)
        elif isinstance(node.node, nodes.Getattr) and not forward_caller:
            self.write("method(")
            self.visit(node.node.node, frame)
            self.write(f", {node.node.attr!r}")
            self.signature(node, frame)
            self.write(")")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self._call("context.joined", node.nodes, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """Add: a sum with a constant text is a text, which is paid when it is made; two others are added and
        paid before. No more than two values are added at a time: a sum has at most twice their length."""
        if _is_const(node.left, int, float) or _is_const(node.right, int, float):
            self._binary(node, "+", frame)
        elif not _has_text(node):
            self._call("context.added", [node.left, node.right], frame)
        else:
            self.write("paid(")
            self._sum(node, frame)
            self.write(")")

    def _sum(self, node: nodes.BinExpr, frame: Frame) -> None:
        """Write a sum that `paid` is given: a chain of constants and two other terms at most."""
        left: nodes.Expr = node
        terms: list[nodes.Expr] = []
        num = 0
        while isinstance(left, nodes.Add) and (not num or _is_const(left.right) or _is_const(left.left)):
            num += not _is_const(left.right)
            terms.append(left.right)
            left = left.left
        self.write("(")
        self.visit(left, frame)
        for term in reversed(terms):
            self.write(" + ")
            self.visit(term, frame)
        self.write(")")

    def visit_Sub(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._arithmetic(node, "-", frame)

    def visit_FloorDiv(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._arithmetic(node, "//", frame)

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._arithmetic(node, "%", frame)

    def _arithmetic(self, node: nodes.BinExpr, operator: str, frame: Frame) -> None:
        """Write an operator that is cheap for integers: their size is limited."""
        left, right = self.temporary_identifier(), self.temporary_identifier()
        self.write(f"({left} {operator} {right} if (type({left} := ")
        self.visit(node.left, frame)
        self.write(f") is int) & (type({right} := ")
        self.visit(node.right, frame)
        self.write(f") is int) else environment.call_binop(context, {operator!r}, {left}, {right}))")

    def _binary(self, node: nodes.BinExpr, operator: str, frame: Frame) -> None:
        self.write("(")
        self.visit(node.left, frame)
        self.write(f" {operator} ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """Compare, where each side but a short constant is weighed, and what is searched is counted."""
        if len(node.ops) == 1 and node.ops[0].op in ("in", "notin"):
            self._membership(node.expr, node.ops[0], frame)
            return
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        is_short = len(sides) == 2 and any(map(_is_short, sides))
        if any(operand.op in ("in", "notin") for operand in node.ops):
            raise Unpriced("it compares in a chain with in, which is not rendered here")
        self.write("(")
        for operand, side in zip([None, *node.ops], sides, strict=True):
            if operand is not None:
                self.write(f" {operators[operand.op]} ")
            if is_short or _is_short(side):
                self.visit(side, frame)
            else:
                self._call("context.weighed", [side], frame)
        self.write(")")

    def _membership(self, item: nodes.Expr, operand: nodes.Operand, frame: Frame) -> None:
        where = operand.expr
        is_literal = isinstance(where, nodes.List | nodes.Tuple) and all(map(_is_short, where.items))
        self.write("(not " if operand.op == "notin" else "(")
        if is_literal or _is_short(item):
            self.write("(")
            self.visit(item, frame)
            self.write(" in ")
            if is_literal:
                self.visit(where, frame)
            else:
                value = self.temporary_identifier()
                self.write(f"({value} if type({value} := ")
                self.visit(where, frame)
                self.write(f") is dict else context.searched({value}))")
            self.write(")")
        else:
            self._call("context.contains", [item, where], frame)
        self.write(")")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        self._lookup("getattr", node.node, node.attr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if _is_const(node.arg, str):
            self._lookup("getitem", node.node, node.arg.value, frame)  # type: ignore[attr-defined]
            return
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self._call("context.sliced", [node.node], frame)
        self.write("[")
        self.visit(node.arg, frame)
        self.write("]")

    def _lookup(self, how: str, of: nodes.Expr, name: str, frame: Frame) -> None:
        """Write a lookup: of dicts and loops, which most are, without a call."""
        is_namespace = isinstance(of, nodes.Name) and of.name in self._namespaces
        if name in DICT_ATTRIBUTES or is_namespace:
            self.write(f"environment.{'of_namespace' if is_namespace and how == 'getattr' else how}(")
            self.visit(of, frame)
            self.write(f", {name!r})")
            return
        value = self.temporary_identifier()
        self.write("(")
        if isinstance(of, nodes.Name) and of.name == "loop" and name in LOOP_ATTRIBUTES:
            self.write(f"{value}.{name} if type({value} := ")
            self.visit(of, frame)
            self.write(") is LoopContext")
        else:
            self.write(f"{value}[{name!r}] if type({value} := ")
            self.visit(of, frame)
            self.write(f") is dict and {name!r} in {value}")
        self.write(f" else environment.{how}({value}, {name!r}))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._made(node.items, lambda: super(BudgetedCode, self).visit_List(node, frame))

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        items = node.items if node.ctx == "load" else []
        self._made(items, lambda: super(BudgetedCode, self).visit_Tuple(node, frame))

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._made([item.value for item in node.items], lambda: self._dict(node, frame))

    def _made(self, values: Iterable[nodes.Node], write: Callable[[], None]) -> None:
        """Write a container, which is looked at where a value may be a container."""
        is_plain = all(map(_is_const, values))
        self.write("" if is_plain else "context.made(")
        write()
        self.write("" if is_plain else ")")

    def _dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("{")
        for item in node.items:
            if _is_const(item.key):
                self.visit(item.key, frame)
            else:
                self._call("context.key", [item.key], frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")
