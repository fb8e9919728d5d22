"""One module per engine; `registry.LOADERS` names them."""
