"""What a node serves over HTTP: the server (`http`), who may ask (`auth`), what can be asked (`routes`, `data`)."""
