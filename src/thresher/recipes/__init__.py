"""One file per claim of the papers; `thresher reproduce` lists them."""
