"""`model.generate(..., custom_generate="path/to/this/repository", trust_remote_code=True)` comes here.

The self-contained form of this folder, for the Hub, is written by scripts/export_hub_module.py.
"""

import sys
from pathlib import Path


def _find_package():
    """Make `lettuceprevent` importable where it is not installed.

    transformers runs a copy of this file and does not tell it where from. The path of the repository stands
    in
    the frame of the loader, as long as that is running, which it is while this module is imported.
    """
    frame = sys._getframe()
    while frame is not None:
        source = frame.f_locals.get("pretrained_model_name_or_path")
        if source is not None and (Path(str(source)) / "lettuceprevent" / "generation.py").is_file():
            sys.path.append(str(Path(str(source)).resolve()))
            return
        frame = frame.f_back


try:
    import lettuceprevent  # noqa: F401
except ImportError:
    _find_package()


def generate(*args, model, **kwargs):
    """See `lettuceprevent.generate`; `model` comes by name, everything else as generate() takes it."""
    try:
        from lettuceprevent.generation import generate as generate_with_prevention
    except ImportError as error:
        raise ImportError(
            "expected the package lettuceprevent beside custom_generate/ or installed; for use without it, "
            "write a self-contained folder with scripts/export_hub_module.py"
        ) from error
    return generate_with_prevention(model, *args, **kwargs)
