"""Write two real tables as CSV files, one for each owner.

    pip install scikit-survival statsmodels
    python examples/clinical/write_tables.py hospitals

The data are not part of alidpfl. They ship inside two packages, and are read from there:

- `flchain` (scikit-survival, GPL-3.0): 7,874 residents of Olmsted County, Minnesota, with two proteins of a blood
  sample. Predict who died during the study. An owner holds the samples of one to four years.
- `randhie` (statsmodels, public domain): 20,190 years of 5,908 persons in the RAND Health Insurance Experiment. Predict
  the number of visits to a doctor, or three kinds of care at once. An owner is one of the six sites.

The schemas are beside this file: `flchain.toml`, `visits.toml` and `care.toml`. Their bounds and categories come from
the published descriptions of the tables, not from their rows.
"""

import importlib.util
import sys
from pathlib import Path

import polars as pl

_YEARS = {"1995": "1995-1996", "1996": "1995-1996"} | {str(year): "2000-2003" for year in range(2000, 2004)}
_SITES = ("dayton", "seattle", "fitchburg", "franklin", "charleston", "georgetown")


def flchain() -> dict[str, pl.DataFrame]:
    """Return the rows of each owner, by the year of the blood sample."""
    lines = _file("sksurv", "datasets/data/flchain.arff", "scikit-survival").read_text().splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    rows = [line.split(",") for line in lines if line and not line.startswith("@")]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row").with_columns(
        pl.col("sample.yr").replace(_YEARS).alias("owner"),
        pl.col("creatinine").replace("?", ""),
    )
    columns = ["age", "sex", "kappa", "lambda", "creatinine", "mgus", "death"]
    return {str(owner): part.select(columns) for (owner,), part in sorted(frame.group_by("owner"))}


def randhie() -> dict[str, pl.DataFrame]:
    """Return the rows of each owner, by the site of the experiment."""
    path = _file("statsmodels", "datasets/randhie/src/randhie.csv", "statsmodels")
    frame = pl.read_csv(path, infer_schema_length=None)
    whole = {
        name: pl.col(name).cast(pl.Int64) for name in ("site", "zper", "female", "black", "child", "idp", "physlm")
    }
    health = pl.when(pl.col("hlthp") == 1).then(pl.lit("poor")).when(pl.col("hlthf") == 1).then(pl.lit("fair"))
    frame = frame.select(
        whole["site"].alias("site"),
        whole["zper"].alias("person"),
        pl.col("xage").round(1).alias("age"),
        *(whole[name] for name in ("female", "black", "child")),
        pl.col("income"),
        pl.col("educdec").alias("education"),
        pl.col("num").alias("family"),
        pl.col("coins").cast(pl.Int64).alias("coinsurance"),
        whole["idp"].alias("deductible"),
        pl.col("disea").alias("diseases"),
        whole["physlm"].alias("limited"),
        health.when(pl.col("hlthg") == 1).then(pl.lit("good")).otherwise(pl.lit("excellent")).alias("health"),
        pl.col("mhi").alias("mental"),
        pl.col("mdvis").alias("visits"),
        (pl.col("mdvis") > 0).cast(pl.Int64).alias("doctor"),
        (pl.col("totadm") > 0).cast(pl.Int64).alias("hospital"),
        (pl.col("mentvis") > 0).cast(pl.Int64).alias("psychotherapy"),
    )
    return {_SITES[int(site) - 1]: part.drop("site") for (site,), part in sorted(frame.group_by("site"))}


def write(folder: Path) -> None:
    """Write both tables below a folder, one file for each owner."""
    for name, tables in (("flchain", flchain()), ("randhie", randhie())):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for owner, frame in tables.items():
            frame.write_csv(folder / name / f"{owner}.csv")
        print(f"{folder / name}: {', '.join(f'{owner} {len(frame):,} rows' for owner, frame in tables.items())}")


def _file(package: str, path: str, distribution: str) -> Path:
    """Return a file inside an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        sys.exit(f"{package} is not installed; run: pip install {distribution}")
    return Path(spec.submodule_search_locations[0]) / path


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals"))
