"""Makes from the models of `pilothouse_api`: CRDs, the chart's copies of CRDs and policies, and the reference pages.

Models say what there is, `schema` reads them, `crds`, `chart` and `reference` write it in three forms, `outputs` is the
list of files. What is hand-written (crds/policies) is only copied.
"""
