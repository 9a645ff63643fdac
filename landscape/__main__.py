from landscape.cli import main

main()
