"""The house's rules, read from the source itself: who imports whom, and what nobody does."""

import ast
import functools
import graphlib
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import exgrpo

ROOT = Path(exgrpo.__file__).parent
MODULES = {
    ".".join(("exgrpo", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
HOSTS = {"transformers", "trl", "verl", "ray", "accelerate", "datasets", "peft"}
CORE = (
    "errors",
    "spelling",
    "registry",
    "conditions",
    "config",
    "presets",
    "unused_options",
    "experience",
    "replay",
    "objective",
)
MAY_IMPORT = {
    "errors": set(),
    "spelling": set(),
    "registry": {"errors", "spelling"},
    "conditions": {"registry"},
    "config": {"conditions", "errors", "registry", "spelling"},
    "presets": {"errors", "config", "spelling"},
    "unused_options": {"config", "presets"},
    "experience": {"errors", "config", "registry"},
    "replay": {"errors", "config", "registry", "experience"},
    "objective": {"errors", "config", "registry"},
}
THIRD_PARTY = {
    "errors": set(),
    "spelling": set(),
    "registry": set(),
    "config": set(),
    "presets": set(),
    "conditions": set(),
    "unused_options": set(),
    "experience": {"numpy", "filelock", "pyarrow"},
    "replay": {"numpy"},
    "objective": {"torch"},
}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@functools.cache
def imports(module: str) -> set[str]:
    """Absolute names of all that a module imports, wherever in it the import stands."""
    path, found = MODULES[module], set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" if name == "exgrpo" or not node.module else name for alias in node.names}
    return found


def in_room(*rooms: str) -> list[str]:
    return [module for module in MODULES if room(module) in rooms]


def test_the_reader_of_imports_sees_relative_and_late_ones():
    assert "exgrpo.experience.buffer" in imports("exgrpo.replay.planner")
    assert "exgrpo.config" in imports("exgrpo.replay.sampling")
    assert "exgrpo.experience.buffer" in imports("exgrpo.experience")
    assert "numpy" in imports("exgrpo.experience.buffer")
    assert all(in_room(name) for name in CORE)


def test_the_core_imports_downwards_only():
    for module in in_room(*CORE):
        here = room(module)
        for name in imports(module):
            top, _, rest = name.partition(".")
            if top == "exgrpo":
                assert rest, f"{module} imports the whole package"
                assert room(name) in MAY_IMPORT[here] | {here}, f"{module} imports {name}"
            elif top not in sys.stdlib_module_names:
                assert top in THIRD_PARTY[here], f"{module} imports {name}"


def test_hosts_do_not_know_each_other():
    for here, other in (("trl", "verl"), ("verl", "trl")):
        for module in in_room(here):
            for name in imports(module):
                assert name.partition(".")[0] != other, f"{module} imports {name}"
                assert not f"{name}.".startswith(f"exgrpo.{other}."), f"{module} imports {name}"


def test_the_runtime_knows_no_host():
    """What every host shares imports none; the encoder alone asks transformers, late."""
    for module in in_room("runtime"):
        for name in imports(module):
            top = name.partition(".")[0]
            assert room(name) not in ("trl", "verl", "cli", "lab", "report"), f"{module} imports {name}"
            assert top not in HOSTS or (module, top) == ("exgrpo.runtime.encoder", "transformers"), (
                f"{module} imports {name}"
            )


def test_importing_the_runtime_loads_no_host():
    modules = ", ".join(in_room("runtime"))
    code = f"import sys, {modules}; print(sorted(set({sorted(HOSTS)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_function_takes_any_trainer():
    """What a function needs of a host is an argument, a `RunContext` or a host's type."""
    for module, path in MODULES.items():
        if room(module) in ("runtime", "trl"):
            assert "trainer: Any" not in path.read_text(), module


def test_no_module_below_knows_what_stands_on_top():
    for module in in_room(*CORE, "runtime", "trl", "verl", "rewards", "tasks"):
        for name in imports(module):
            assert not (name.startswith("exgrpo.") and room(name) in ("cli", "report", "lab", "view")), (
                f"{module} imports {name}"
            )
    for module in in_room("report", "evaluation"):
        assert not any(name.startswith("exgrpo.cli") for name in imports(module)), module


def test_the_viewer_loads_neither_torch_nor_a_host():
    """Its server stays small; what needs torch runs in a process of its own."""
    heavy = sorted(HOSTS | {"torch", "pandas", "pyarrow", "tokenizers"})
    code = f"import sys, {', '.join(in_room('view'))}; print(sorted(set({heavy!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_the_core_loads_no_host():
    """Also not through a third party: in an interpreter of its own."""
    code = (
        "import sys, exgrpo, exgrpo.experience, exgrpo.replay; assert 'torch' not in sys.modules, 'torch';"
        f"import exgrpo.objective; print(sorted(set({sorted(HOSTS)!r}) & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_every_module_says_what_it_is_for():
    for module in MODULES:
        assert ast.get_docstring(tree(module)) or not tree(module).body, module


CLAUSES = " How Of Those What When Where Whether Which Who Why "
NO_VERBS = (
    f"{CLAUSES}A All An And Any As At Both By Each Every For From He If In Is It Its Like More Most No None Not Nothing On "
    "One Only Or Other Several Some Such The Their There These They This To Two Under With Without "
)
"""Words that begin a noun phrase or a clause; ruff's D401 finds verbs in another mood."""


def test_docstrings_say_what_to_do_and_not_what_is():
    """Functions: "Return ...", "Count ...". Modules, classes and properties may be noun phrases, but no clauses."""
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
                acts = isinstance(node, ast.FunctionDef) and not any("property" in name for name in decorators)
                where = f"{module}.{getattr(node, 'name', '')}: {text.splitlines()[0]}"
                assert f" {text.split()[0]} " not in (NO_VERBS if acts else CLAUSES), where


def test_what_nobody_does():
    """Print outside the command line, keep state by pickle, stop in a debugger, or swallow every exception."""
    for module in MODULES:
        tree(module)
        assert not {name.partition(".")[0] for name in imports(module)} & {
            "pickle",
            "cPickle",
            "dill",
            "cloudpickle",
            "shelve",
        }
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print" or room(module) == "cli", f"{module}:{node.lineno} prints"
                assert node.func.id != "breakpoint", f"{module}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                allowed = {k.arg: k.value for k in node.keywords}
                unsafe = getattr(allowed.get("weights_only"), "value", None) is False
                assert not unsafe, f"{module}:{node.lineno} loads pickled objects"
                assert getattr(allowed.get("allow_pickle"), "value", None) is not True, f"{module}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), (
                f"{module}:{node.lineno} bare except"
            )


def test_no_draw_in_the_core_uses_a_global_generator():
    """numpy's and torch's global state, or the random module: a generator is passed in, or made from seed and generation."""
    for module in in_room("experience", "replay", "objective"):
        assert "random" not in imports(module)
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
                ("np.random.", "torch.rand", "torch.manual")
            ):
                assert ast.unparse(node) in ("np.random.Generator", "np.random.default_rng", "np.random.SeedSequence")


def test_no_code_asks_for_a_preset_s_name():
    """A recipe is data: its name stands in presets.py and in texts, never in a comparison."""
    names = set(exgrpo.PRESETS)
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Compare):
                texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                if "preset" in ast.unparse(node):
                    assert not texts & names, f"{module}:{node.lineno} {ast.unparse(node)}"


# The spine ------------------------------------------------------------------------------------------------------------

SPINE = (
    "experience.trajectory", "experience.questions", "experience.buffer", "replay.gate", "replay.sampling",
    "replay.choice", "replay.planner", "objective.advantage", "objective.loss",
)  # fmt: skip
MOST_LINES, MOST_LINES_OF_A_FILE = 760, 150


def lines_of_code(text: str) -> int:
    """Lines that hold code: no docstring, no comment, no blank."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    code: set[int] = set()
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docs)


def test_lines_of_code_are_counted():
    assert lines_of_code('"""Doc."""\n\n# no\nx = (\n    1,\n)  # yes\n"""Of x."""\n') == 3


def test_the_spine_is_short():
    lines = {name: lines_of_code(MODULES[f"exgrpo.{name}"].read_text()) for name in SPINE}
    assert max(lines.values()) <= MOST_LINES_OF_A_FILE, lines
    assert sum(lines.values()) <= MOST_LINES, lines


def test_the_spine_imports_no_option():
    for name in SPINE:
        assert not any(".options" in imported for imported in imports(f"exgrpo.{name}"))


def files_imported(module: str) -> set[str]:
    """Our files that a file imports, those too that only types need."""
    path, found = MODULES[module], set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{a.name}" if f"{name}.{a.name}" in MODULES else name for a in node.names}
    return found & MODULES.keys() - {module}


def test_no_circle_of_files():
    graphlib.TopologicalSorter({module: files_imported(module) for module in MODULES}).prepare()


ROOMS_ABOVE = {
    "experience": ("replay", "objective", "log", "archive", "runtime", "trl", "verl", "recipes"),
    "replay": ("objective", "log", "archive", "runtime", "trl", "verl", "recipes"),
    "objective": ("experience", "replay", "log", "archive", "runtime", "trl", "verl", "recipes"),
    "log": ("replay", "objective", "archive", "runtime", "trl", "verl", "recipes"),
    "archive": ("replay", "objective", "runtime", "trl", "verl", "recipes"),
    "runtime": ("trl", "verl", "recipes"),
    "recipes": ("log", "archive", "runtime", "trl", "verl"),
}


def test_no_room_imports_one_above_it():
    for module in in_room(*ROOMS_ABOVE):
        above = {room(name) for name in imports(module) if name.startswith("exgrpo.")} & set(ROOMS_ABOVE[room(module)])
        assert not above, f"{module} imports {above}"


def test_no_module_is_named_by_a_string_but_by_options_and_commands():
    """A path in a string would be an import that the other tests do not see."""
    for module in MODULES:
        if module not in ("exgrpo.config", "exgrpo.cli.main"):
            for node in ast.walk(tree(module)):
                named = isinstance(node, ast.Constant) and node.value in MODULES and "." in str(node.value)
                lower = named and room(node.value) in (room(module), "lab", "trl")  # workers of the lab, by their names
                assert not named or (room(module) == "lab" and lower), f"{module}:{node.lineno} {node.value}"


OF_LIBRARIES = ("os._exit", "argparse.", "parser._", "CommandParser._", "trainer._metrics")


def test_no_one_reaches_into_another_s_private_attributes():
    for module in [m for m in MODULES if room(m) not in ("trl", "verl")]:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                own = ast.unparse(node.value) in ("self", "cls", "super()")
                assert own or ast.unparse(node).startswith(OF_LIBRARIES), f"{module}:{node.lineno} {ast.unparse(node)}"
