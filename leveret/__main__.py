from leveret.cli.main import main

raise SystemExit(main())
