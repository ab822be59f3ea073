"""Questions to Helm 4 and to the schemas of Kubernetes' API, which live in an environment of their own.

python helm4.py render CHART NAMESPACE VALUES...    prints the rendered templates of each file of values
python helm4.py validate VERSIONS FILE...           prints what is wrong in the manifests of each file
python helm4.py release VERB KUBECONFIG NAMESPACE [CHART VALUES]    installs, upgrades, rolls back, uninstalls

All print JSON; the values of a release are JSON, too.
"""

import json
import sys
from pathlib import Path

import yaml


def rendered(chart_path: str, namespace: str, *values: str) -> dict[str, dict[str, str]]:
    import helm_python

    with helm_python.Chart.load(chart_path) as chart:
        return {
            Path(path).stem: chart.render(
                yaml.safe_load(Path(path).read_text()), name="kvgate", namespace=namespace
            )
            for path in values
        }


def problems(versions: str, *paths: str) -> dict[str, list[str]]:
    """Problems by file; a kind without a schema is named, as "unknown: KIND"."""
    import kubernetes_validate

    found: dict[str, list[str]] = {}
    for path in paths:
        lines = found.setdefault(Path(path).stem, [])
        for manifest in filter(None, yaml.safe_load_all(Path(path).read_text())):
            for version in versions.split(","):
                try:
                    kubernetes_validate.validate(manifest, version, strict=True)
                except kubernetes_validate.SchemaNotFoundError:
                    lines.append(f"unknown: {manifest['kind']}")
                except kubernetes_validate.ValidationError as exc:
                    where = ".".join(map(str, exc.path))
                    lines.append(f"{version} {manifest['kind']} {where}: {exc.message}")
    return found


def release(verb: str, kubeconfig: str, namespace: str, chart_path: str = "", values: str = "{}") -> str:
    """Change the release `kvgate` in a cluster."""
    import helm_python

    with helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace) as config:
        if verb in ("install", "upgrade"):
            with helm_python.Chart.load(chart_path) as chart:
                getattr(config, verb)(chart, "kvgate", json.loads(values), namespace=namespace)
        elif verb == "rollback":
            config.rollback("kvgate", version=1)
        else:
            config.uninstall("kvgate")
    return verb


if __name__ == "__main__":
    answer = {"render": rendered, "validate": problems, "release": release}[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(answer))
